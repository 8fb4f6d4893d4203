// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Await is the CNI_COMMAND of a request that is no verb: the agent answers once the policies hold that the cluster has
// for the Pod of CNI_ARGS, in the datapath of the directories and of the layout that the request names. Its version
// does not count.
const Await = "AWAIT"

// again is how long AwaitPolicies waits before it looks for an agent again: one that starts anew takes its time.
const again = 100 * time.Millisecond

var (
	// answerTime is how long the plugin waits for an answer. Each wait of a verb for a lock ends after half of it.
	answerTime = time.Minute
	// lateTime is how long it waits for the answer to a request whose context has a deadline, after that.
	lateTime = time.Second
)

// errDeclined is the error if the agent declines a request.
var errDeclined = errors.New("the agent has declined")

// AwaitPolicies sends a request of Await to the agent at a socket, and to the next one if that ends, until one answers
// that the policies hold, or ctx ends. The error tells why they do not yet, or that there is no agent.
func AwaitPolicies(ctx context.Context, socket string, r Request) error {
	for {
		answer, err := ask(ctx, socket, r)
		switch {
		case errors.Is(err, errDeclined):
			err = fmt.Errorf("%s: the agent has another layout or other directories, or starts or ends: %w", socket, err)
		case err == nil && answer.Exit == 0:
			return nil
		case err == nil:
			err = errors.New(string(answer.Stderr))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}

// ask sends a request to the agent at a socket and waits for its answer. When ctx ends, the agent is told to give up,
// and its answer is still waited for. The error matches errDeclined if the agent has declined.
func ask(ctx context.Context, socket string, r Request) (answer Answer, err error) {
	packet, err := r.encode()
	if err != nil {
		return answer, err
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if _, err := rootPeer(conn); err != nil {
		return answer, fmt.Errorf("%s: %w", socket, err)
	}
	limit := answerTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)+lateTime)
	}
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return answer, err
	}
	if _, err = conn.Write(packet); err == nil {
		stop := context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })
		defer stop()
		answer, err = receive(conn)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the agent at %s gives no answer within %v", socket, limit.Round(time.Second))
	case err != nil && !errors.Is(err, errDeclined):
		err = fmt.Errorf("the agent at %s ended before its answer: %w", socket, err)
	}
	return answer, err
}

// receive receives an answer.
func receive(conn *net.UnixConn) (Answer, error) {
	var first [headSize + 1]byte
	n, err := conn.Read(first[:])
	if err != nil {
		return Answer{}, err
	}
	answer, rest, err := text(first[:n])
	for err == nil && len(rest) > 0 {
		n, err = conn.Read(rest)
		rest = rest[n:]
	}
	return answer, err
}

// rootPeer returns the process at the other end of a socket, as this process sees it. The error is that it is not
// root's.
func rootPeer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	if peer.Uid != 0 {
		return 0, fmt.Errorf("user %d has the other end: %w", peer.Uid, unix.EPERM)
	}
	return int(peer.Pid), nil
}
