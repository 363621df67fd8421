'use strict';
// node-redlock over ioredis, told line by line what to do: see PROTOCOL.md.

const readline = require('node:readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

// How often a waiting lock asks again. Far more often than by default, so that all have the same chances in a contest.
const RETRY_DELAY_MS = 10;

class Peer {
  constructor(url) {
    this.clients = url.split(',').map((one) => new Redis(one));
    this.once = this.redlock(0);
    this.held = null;
  }

  // The number of tries belongs to the whole object.
  redlock(retryCount) {
    const redlock = new Redlock(this.clients, { retryCount, retryDelay: RETRY_DELAY_MS, retryJitter: RETRY_DELAY_MS / 2 });
    // To the caller a server's error looks like a busy lock.
    redlock.on('clientError', (error) => console.error(error));
    return redlock;
  }

  async acquire(name, leaseMs, waitMs) {
    if (leaseMs === 0) throw new Error('redlock has no lock without an end');
    // It waits by tries and pauses, not by a time.
    const lock = await unless(this.redlock(Math.floor(waitMs / RETRY_DELAY_MS)).lock(name, leaseMs));
    if (lock) this.held = lock;
    return lock ? 'acquired' : 'busy';
  }

  async release() {
    const lock = this.held;
    this.held = null;
    return lock && (await unless(this.once.unlock(lock).then(() => true))) ? 'released' : 'not-held';
  }

  async extend(leaseMs) {
    return this.held && (await unless(this.once.extend(this.held, leaseMs))) ? 'extended' : 'not-held';
  }

  answer([verb, ...rest]) {
    if (verb === 'acquire' && rest.length === 3) return this.acquire(rest[0], Number(rest[1]), Number(rest[2]));
    if (verb === 'release' && rest.length === 0) return this.release();
    if (verb === 'extend' && rest.length === 1) return this.extend(Number(rest[0]));
    throw new Error(`cannot understand ${verb}`);
  }
}

// What a call gives, or null when the library says that the lock is not ours.
async function unless(call) {
  try {
    return await call;
  } catch (error) {
    if (error instanceof Redlock.LockError) return null;
    throw error;
  }
}

async function main([library, url]) {
  if (library !== 'redlock') throw new Error(`unknown library ${library}`);
  const peer = new Peer(url);
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
  peer.clients.forEach((client) => client.disconnect());
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
