package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockPeer struct {
	client *redislock.Client
	held   *redislock.Lock
}

func newRedislock(client *redis.Client) *redislockPeer {
	return &redislockPeer{client: redislock.New(client)}
}

func (p *redislockPeer) acquire(name string, lease, wait time.Duration) (string, error) {
	// Without a deadline of ours it would stop waiting after one lease. Ours is late: it must not cut a request in two.
	ctx, cancel := context.WithTimeout(context.Background(), wait+time.Minute)
	defer cancel()
	retry := redislock.LimitRetry(redislock.LinearBackoff(retryDelay), int(wait/retryDelay))
	lock, err := p.client.Obtain(ctx, name, lease, &redislock.Options{RetryStrategy: retry})
	if errors.Is(err, redislock.ErrNotObtained) {
		return "busy", nil
	}
	if err != nil {
		return "", err
	}
	p.held = lock
	return "acquired", nil
}

func (p *redislockPeer) release() (string, error) {
	lock := p.held
	p.held = nil
	if lock == nil {
		return "not-held", nil
	}
	err := lock.Release(context.Background())
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return "not-held", nil
	}
	return "released", err
}

func (p *redislockPeer) extend(lease time.Duration) (string, error) {
	if p.held == nil {
		return "not-held", nil
	}
	err := p.held.Refresh(context.Background(), lease, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return "not-held", nil
	}
	return "extended", err
}
