// The lock and the election of etcd's own Go client, told line by line what to do: see PROTOCOL.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Far more than one request takes. It is here so that nothing hangs for ever.
const requestLimit = 30 * time.Second

// A library, seen from the protocol. The answers are the protocol's words.
type library interface {
	acquire(name string, lease, wait time.Duration) (string, error)
	release() (string, error)
	extend(lease time.Duration) (string, error)
}

func open(which string, client *clientv3.Client) (library, error) {
	sessions := &sessions{client: client}
	switch which {
	case "mutex":
		return &mutexPeer{sessions: sessions}, nil
	case "election":
		value := fmt.Sprintf("%s-%d", which, os.Getpid())
		return &electionPeer{sessions: sessions, value: value, observed: map[string]<-chan *clientv3.GetResponse{}}, nil
	case "ignores-the-answer", "deletes-without-comparing", "looks-then-writes":
		return &saboteur{client: client, sessions: sessions, mistake: which}, nil
	}
	return nil, fmt.Errorf("unknown library %q", which)
}

func answer(peer library, words []string) (string, error) {
	switch {
	case len(words) == 4 && words[0] == "acquire":
		lease, err := milliseconds(words[2])
		if err != nil {
			return "", err
		}
		if lease == 0 {
			return "", fmt.Errorf("no library here has a lock without an end")
		}
		wait, err := milliseconds(words[3])
		if err != nil {
			return "", err
		}
		return peer.acquire(words[1], lease, wait)
	case len(words) == 1 && words[0] == "release":
		return peer.release()
	case len(words) == 2 && words[0] == "extend":
		lease, err := milliseconds(words[1])
		if err != nil {
			return "", err
		}
		return peer.extend(lease)
	}
	if candidate, ok := peer.(*electionPeer); ok {
		return answerCandidate(candidate, words)
	}
	return "", fmt.Errorf("cannot understand %q", strings.Join(words, " "))
}

// What only an election can be asked.
func answerCandidate(peer *electionPeer, words []string) (string, error) {
	switch {
	case len(words) == 2 && words[0] == "proclaim":
		return peer.proclaim(words[1])
	case len(words) == 2 && words[0] == "leader":
		return peer.leader(words[1])
	case len(words) == 3 && words[0] == "observe":
		wait, err := milliseconds(words[2])
		if err != nil {
			return "", err
		}
		return peer.observe(words[1], wait)
	}
	return "", fmt.Errorf("cannot understand %q", strings.Join(words, " "))
}

func milliseconds(word string) (time.Duration, error) {
	number, err := strconv.ParseInt(word, 10, 64)
	return time.Duration(number) * time.Millisecond, err
}

func serve(peer library) error {
	fmt.Println("ready")
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		said, err := answer(peer, strings.Fields(requests.Text()))
		if err != nil {
			said = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(said)
	}
	return requests.Err()
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: driver LIBRARY ETCD-URL")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{args[2]}, DialTimeout: requestLimit, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	if args[1] == "handoff" {
		return handoff(client)
	}
	peer, err := open(args[1], client)
	if err != nil {
		return err
	}
	return serve(peer)
}

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
