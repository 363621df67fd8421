'use strict';
// A Redlock library of JavaScript over ioredis, told line by line what to do: see PROTOCOL.md.

const readline = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');
const Redis = require('ioredis');

// How often a waiting lock asks again. Far more often than by default, so that all have the same chances in a contest.
const RETRY_DELAY_MS = 10;

// node-redlock 4.
class Four {
  constructor(clients) {
    this.Redlock = require('redlock');
    this.clients = clients;
    this.once = this.redlock(0);
  }

  // The number of tries belongs to the whole object.
  redlock(retryCount) {
    const redlock = new this.Redlock(this.clients, { retryCount, retryDelay: RETRY_DELAY_MS, retryJitter: RETRY_DELAY_MS / 2 });
    // To the caller a server's error looks like a busy lock.
    redlock.on('clientError', (error) => console.error(error));
    return redlock;
  }

  // It waits by tries and pauses, not by a time.
  acquire(name, leaseMs, waitMs) {
    return this.redlock(Math.floor(waitMs / RETRY_DELAY_MS)).lock(name, leaseMs);
  }

  release(lock) {
    return this.once.unlock(lock).then(() => true);
  }

  extend(lock, leaseMs) {
    return this.once.extend(lock, leaseMs);
  }

  isLost(error) {
    return error instanceof this.Redlock.LockError;
  }
}

// node-redlock 5, and the fork of it that is maintained.
class Five {
  constructor(clients, library) {
    this.library = library;
    this.redlock = new library.Redlock(clients, { retryCount: 0 });
    this.redlock.on('error', (error) => {
      if (!(error instanceof library.ResourceLockedError)) console.error(error);
    });
  }

  // Between tries of its own it keeps the keys that it got, and two such waiters leave no majority to any program. So each try
  // is one acquisition.
  async acquire(name, leaseMs, waitMs) {
    const end = Date.now() + waitMs;
    for (;;) {
      const lock = await unless(this, this.redlock.acquire([name], leaseMs));
      if (lock || Date.now() >= end) return lock;
      await pause(RETRY_DELAY_MS * (0.5 + Math.random()));
    }
  }

  release(lock) {
    return this.redlock.release(lock).then(() => true);
  }

  extend(lock, leaseMs) {
    return this.redlock.extend(lock, leaseMs);
  }

  isLost(error) {
    return error instanceof this.library.ExecutionError;
  }
}

function open(library, clients) {
  switch (library) {
    case 'redlock':
      return new Four(clients);
    case 'redlock-5': {
      const { default: Redlock, ...rest } = require('redlock5');
      return new Five(clients, { Redlock, ...rest });
    }
    case 'redlock-sesamecare':
      return new Five(clients, require('@sesamecare-oss/redlock'));
    default:
      throw new Error(`unknown library ${library}`);
  }
}

class Peer {
  constructor(library) {
    this.library = library;
    this.held = null;
  }

  async acquire(name, leaseMs, waitMs) {
    if (leaseMs === 0) throw new Error('redlock has no lock without an end');
    const lock = await unless(this.library, this.library.acquire(name, leaseMs, waitMs));
    if (lock) this.held = lock;
    return lock ? 'acquired' : 'busy';
  }

  async release() {
    const lock = this.held;
    this.held = null;
    return lock && (await unless(this.library, this.library.release(lock))) ? 'released' : 'not-held';
  }

  async extend(leaseMs) {
    const extended = this.held && (await unless(this.library, this.library.extend(this.held, leaseMs)));
    if (!extended) return 'not-held';
    this.held = extended;
    return 'extended';
  }

  answer([verb, ...rest]) {
    if (verb === 'acquire' && rest.length === 3) return this.acquire(rest[0], Number(rest[1]), Number(rest[2]));
    if (verb === 'release' && rest.length === 0) return this.release();
    if (verb === 'extend' && rest.length === 1) return this.extend(Number(rest[0]));
    throw new Error(`cannot understand ${verb}`);
  }
}

// What a call gives, or null when the library says that the lock is not ours.
async function unless(library, call) {
  try {
    return await call;
  } catch (error) {
    if (library.isLost(error)) return null;
    throw error;
  }
}

async function main([library, url]) {
  const clients = url.split(',').map((one) => new Redis(one));
  const peer = new Peer(open(library, clients));
  console.log('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let said;
    try {
      said = await peer.answer(line.split(' '));
    } catch (error) {
      said = `error ${String(error.message).replaceAll('\n', ' ')}`;
    }
    console.log(said);
  }
  clients.forEach((client) => client.disconnect());
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
