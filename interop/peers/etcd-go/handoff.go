package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

// One process of the benchmark's contest: it wants the lock again and again, and notes when it got it. It is told when to
// begin and for how long, in nanoseconds of the clock that counts suspend, and reports its CPU time and its turns.
func handoff(client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var start, length int64
	var first int
	if _, err := fmt.Scan(&start, &length, &first); err != nil {
		return err
	}
	time.Sleep(time.Duration(start - clock(unix.CLOCK_BOOTTIME)))
	cpu := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	turns, err := take(session, start+length)
	if err != nil {
		return err
	}
	report := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(report, clock(unix.CLOCK_PROCESS_CPUTIME_ID)-cpu)
	for _, turn := range turns {
		fmt.Fprintln(report, turn[0], turn[1])
	}
	return report.Flush()
}

// When it got the lock, and how long it had waited, each time until the end.
func take(session *concurrency.Session, end int64) ([][2]int64, error) {
	mutex := concurrency.NewMutex(session, "handoff")
	ctx := context.Background()
	var turns [][2]int64
	for {
		asked := clock(unix.CLOCK_BOOTTIME)
		if err := mutex.Lock(ctx); err != nil {
			return nil, err
		}
		at := clock(unix.CLOCK_BOOTTIME)
		if err := mutex.Unlock(ctx); err != nil {
			return nil, err
		}
		if at >= end {
			return turns, nil
		}
		turns = append(turns, [2]int64{at, at - asked})
	}
}

func clock(which int32) int64 {
	var now unix.Timespec
	// It fails only for clocks that there are not.
	_ = unix.ClockGettime(which, &now)
	return now.Nano()
}
