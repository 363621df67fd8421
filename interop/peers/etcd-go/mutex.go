package main

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// concurrency.Mutex.
type mutexPeer struct {
	sessions *sessions
	held     *concurrency.Mutex
}

func (p *mutexPeer) acquire(name string, lease, wait time.Duration) (string, error) {
	session, err := p.sessions.of(lease)
	if err != nil {
		return "", err
	}
	mutex := concurrency.NewMutex(session, name)
	if wait == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
		defer cancel()
		err = mutex.TryLock(ctx)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		err = mutex.Lock(ctx)
		// Whoever gives up waiting has the library take the key out of the line.
		if err != nil && ctx.Err() != nil {
			return "busy", nil
		}
	}
	// The second is what it says when its key was deleted while it waited, also by somebody else.
	if errors.Is(err, concurrency.ErrLocked) || errors.Is(err, concurrency.ErrSessionExpired) {
		return "busy", nil
	}
	if err != nil {
		return "", err
	}
	p.held = mutex
	return "acquired", nil
}

func (p *mutexPeer) release() (string, error) {
	if p.held == nil {
		return "not-held", nil
	}
	// Unlock deletes without a look, and does not tell. The library's own comparison does.
	held, err := p.isOwner()
	if err != nil {
		return "", err
	}
	mutex := p.held
	p.held = nil
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	if err := mutex.Unlock(ctx); err != nil {
		return "", err
	}
	if !held {
		return "not-held", nil
	}
	return "released", nil
}

// The session does it all the time, and there is no other way: this says whether it does.
func (p *mutexPeer) extend(time.Duration) (string, error) {
	if p.held == nil {
		return "not-held", nil
	}
	held, err := p.isOwner()
	if err != nil {
		return "", err
	}
	if !held {
		return "not-held", nil
	}
	return "extended", nil
}

func (p *mutexPeer) isOwner() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	response, err := p.sessions.client.Txn(ctx).If(p.held.IsOwner()).Commit()
	if err != nil {
		return false, err
	}
	return response.Succeeded, nil
}
