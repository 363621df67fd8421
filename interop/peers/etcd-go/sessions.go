package main

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// One session at a time, of the length that was asked for last. It is kept alive by the library itself.
type sessions struct {
	client *clientv3.Client
	ttl    int
	now    *concurrency.Session
}

func (s *sessions) of(lease time.Duration) (*concurrency.Session, error) {
	ttl := int((lease + time.Second - 1) / time.Second)
	if s.now != nil && s.ttl == ttl {
		select {
		case <-s.now.Done():
		default:
			return s.now, nil
		}
	}
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	s.now, s.ttl = session, ttl
	return session, nil
}
