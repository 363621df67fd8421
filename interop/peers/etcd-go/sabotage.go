package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The usual mistakes, on the keys of the lock. A contest with one of them must show violations.
type saboteur struct {
	client   *clientv3.Client
	sessions *sessions
	mistake  string
	// Its own key, if it has written one.
	key string
}

func (p *saboteur) acquire(name string, lease, _ time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	session, err := p.sessions.of(lease)
	if err != nil {
		return "", err
	}
	line, key := name+"/", fmt.Sprintf("%s/%x", name, session.Lease())
	put := clientv3.OpPut(key, "", clientv3.WithLease(session.Lease()))
	switch p.mistake {
	case "ignores-the-answer":
		// Stands in line, and does not look who is first.
		_, err = p.client.Do(ctx, put)
	case "deletes-without-comparing":
		// Whoever is there must be dead, it thinks.
		_, err = p.client.Delete(ctx, line, clientv3.WithPrefix())
		if err == nil {
			_, err = p.client.Do(ctx, put)
		}
	case "looks-then-writes":
		// In two steps: what happens between them it does not see.
		var found *clientv3.GetResponse
		found, err = p.client.Get(ctx, line, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err == nil && len(found.Kvs) > 0 {
			return "busy", nil
		}
		if err == nil {
			_, err = p.client.Do(ctx, put)
		}
	}
	if err != nil {
		return "", err
	}
	p.key = key
	return "acquired", nil
}

func (p *saboteur) release() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	_, err := p.client.Delete(ctx, p.key)
	// It does not look at this answer either.
	return "unsaid", err
}

func (p *saboteur) extend(time.Duration) (string, error) {
	return "extended", nil
}
