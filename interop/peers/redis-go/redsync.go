package main

import (
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncPeer struct {
	sync *redsync.Redsync
	held *redsync.Mutex
}

// On several servers it is Redlock.
func newRedsync(clients []*redis.Client) *redsyncPeer {
	var pools []redsyncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	return &redsyncPeer{sync: redsync.New(pools...)}
}

func (p *redsyncPeer) acquire(name string, lease, wait time.Duration) (string, error) {
	// It waits by tries and pauses, not by a time.
	tries := 1 + int(wait/retryDelay)
	mutex := p.sync.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(tries), redsync.WithRetryDelay(retryDelay))
	if err := mutex.Lock(); err != nil {
		var taken *redsync.ErrTaken
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			return "busy", nil
		}
		return "", err
	}
	p.held = mutex
	return "acquired", nil
}

func (p *redsyncPeer) release() (string, error) {
	mutex := p.held
	p.held = nil
	if mutex == nil {
		return "not-held", nil
	}
	return heldOr("released", "not-held", mutex.Unlock)
}

// The length is the one that it was acquired with: the library knows no other.
func (p *redsyncPeer) extend(time.Duration) (string, error) {
	if p.held == nil {
		return "not-held", nil
	}
	return heldOr("extended", "not-held", p.held.Extend)
}

// A lock that is somebody else's by now comes as "false", or as one of these errors, by how it was lost.
func heldOr(yes, no string, call func() (bool, error)) (string, error) {
	done, err := call()
	var taken *redsync.ErrTaken
	switch {
	case done:
		return yes, nil
	case err == nil, errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired), errors.Is(err, redsync.ErrExtendFailed):
		return no, nil
	}
	return "", err
}
