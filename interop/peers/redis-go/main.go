// One Redis lock library of Go, told line by line what to do: see PROTOCOL.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// How often a waiting library asks again. Far more often than by default, so that all have the same chances in a contest.
const retryDelay = 10 * time.Millisecond

// A library, seen from the protocol. The answers are the protocol's words.
type library interface {
	acquire(name string, lease, wait time.Duration) (string, error)
	release() (string, error)
	extend(lease time.Duration) (string, error)
}

func open(which string, clients []*redis.Client) (library, error) {
	switch {
	case which == "redsync":
		return newRedsync(clients), nil
	case which == "redislock" && len(clients) == 1:
		return newRedislock(clients[0]), nil
	}
	return nil, fmt.Errorf("unknown library %q for %d servers", which, len(clients))
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
	return "", fmt.Errorf("cannot understand %q", strings.Join(words, " "))
}

func milliseconds(word string) (time.Duration, error) {
	number, err := strconv.ParseInt(word, 10, 64)
	return time.Duration(number) * time.Millisecond, err
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: driver LIBRARY REDIS-URL[,REDIS-URL...]")
	}
	var clients []*redis.Client
	for _, url := range strings.Split(args[2], ",") {
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		clients = append(clients, redis.NewClient(options))
	}
	peer, err := open(args[1], clients)
	if err != nil {
		return err
	}
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

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
