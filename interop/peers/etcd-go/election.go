package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// concurrency.Election. To acquire is to campaign, and to release to resign.
type electionPeer struct {
	sessions *sessions
	// What it proclaims when it is elected.
	value string
	held  *concurrency.Election
	// What it observes, by name.
	observed map[string]<-chan *clientv3.GetResponse
}

func (p *electionPeer) acquire(name string, lease, wait time.Duration) (string, error) {
	if wait == 0 {
		return "", errors.New("a campaign cannot ask without a wait")
	}
	session, err := p.sessions.of(lease)
	if err != nil {
		return "", err
	}
	election := concurrency.NewElection(session, name)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if err := election.Campaign(ctx, p.value); err != nil {
		// Whoever gives up waiting has the library take the key out of the line.
		if ctx.Err() != nil || errors.Is(err, concurrency.ErrSessionExpired) {
			return "busy", nil
		}
		return "", err
	}
	p.held = election
	return "acquired", nil
}

func (p *electionPeer) release() (string, error) {
	leads, err := p.leads()
	if err != nil || p.held == nil {
		return "not-held", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	err = p.held.Resign(ctx)
	p.held = nil
	if err != nil {
		return "", err
	}
	if !leads {
		return "not-held", nil
	}
	return "released", nil
}

func (p *electionPeer) extend(time.Duration) (string, error) {
	leads, err := p.leads()
	if err != nil || !leads {
		return "not-held", err
	}
	return "extended", nil
}

func (p *electionPeer) leads() (bool, error) {
	if p.held == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	ours := clientv3.Compare(clientv3.CreateRevision(p.held.Key()), "=", p.held.Rev())
	response, err := p.sessions.client.Txn(ctx).If(ours).Commit()
	if err != nil {
		return false, err
	}
	return response.Succeeded, nil
}

func (p *electionPeer) proclaim(value string) (string, error) {
	if p.held == nil {
		return "not-held", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	err := p.held.Proclaim(ctx, value)
	if errors.Is(err, concurrency.ErrElectionNotLeader) {
		return "not-held", nil
	}
	return "proclaimed", err
}

// Who leads, or nobody.
func (p *electionPeer) leader(name string) (string, error) {
	election, err := p.spectator(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	response, err := election.Leader(ctx)
	if errors.Is(err, concurrency.ErrElectionNoLeader) {
		return "nobody", nil
	}
	if err != nil {
		return "", err
	}
	return "leader " + string(response.Kvs[0].Value), nil
}

// The next leader or value that it is told of.
func (p *electionPeer) observe(name string, wait time.Duration) (string, error) {
	if p.observed[name] == nil {
		election, err := p.spectator(name)
		if err != nil {
			return "", err
		}
		p.observed[name] = election.Observe(context.Background())
	}
	select {
	case told, open := <-p.observed[name]:
		if !open {
			return "", errors.New("the observation has ended")
		}
		return "leader " + string(told.Kvs[0].Value), nil
	case <-time.After(wait):
		return "nobody", nil
	}
}

func (p *electionPeer) spectator(name string) (*concurrency.Election, error) {
	session, err := p.sessions.of(time.Minute)
	if err != nil {
		return nil, err
	}
	return concurrency.NewElection(session, name), nil
}
