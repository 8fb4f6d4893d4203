// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// answerTime is how long the plugin waits for an answer. Each wait of a verb for a lock ends after half of it.
	answerTime = time.Minute
	// lateTime is how long it waits for the answer to a request whose context has a deadline, after that.
	lateTime = time.Second
)

// errDeclined is the error if the agent declines a request.
var errDeclined = errors.New("the agent has declined")

// agent is a connection to an agent.
type agent struct {
	path string
	fd   int
}

// dial connects to the agent at a socket. The error is that there is none, that it does not take connections, or that it is
// not root's.
func dial(path string) (*agent, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// Without waiting: EAGAIN says that too many wait already.
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		_, err = rootPeer(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &agent{path, fd}, nil
}

func (a *agent) close() { _ = unix.Close(a.fd) }

// ask sends a request and waits for its answer. When ctx ends, the agent is told to give up, and its answer is still waited
// for. The error matches errDeclined if the agent has declined.
func (a *agent) ask(ctx context.Context, r Request) (Answer, error) {
	packet, err := r.encode()
	if err != nil {
		return Answer{}, err
	}
	if err := unix.Sendmsg(a.fd, packet, nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return Answer{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(a.fd, unix.SHUT_WR) })
	defer stop()
	limit := answerTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)+lateTime)
	}
	answer, err := a.receive(limit)
	switch {
	case errors.Is(err, unix.ETIMEDOUT):
		err = fmt.Errorf("the agent at %s gives no answer within %v", a.path, limit.Round(time.Second))
	case err != nil && !errors.Is(err, errDeclined):
		err = fmt.Errorf("the agent at %s ended before its answer: %w", a.path, err)
	}
	return answer, err
}

// receive receives an answer. The error matches unix.ETIMEDOUT if not all of it arrives in time.
func (a *agent) receive(limit time.Duration) (Answer, error) {
	end := time.Now().Add(limit)
	var first [headSize + 1]byte
	n, err := a.packet(first[:], end)
	if err != nil {
		return Answer{}, err
	}
	answer, rest, err := text(first[:n])
	for err == nil && len(rest) > 0 {
		n, err = a.packet(rest, end)
		rest = rest[n:]
	}
	return answer, err
}

// packet receives a packet, of one byte at least.
func (a *agent) packet(into []byte, end time.Time) (int, error) {
	for {
		left := time.Until(end)
		if left <= 0 {
			return 0, unix.ETIMEDOUT
		}
		ready := []unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		n, _, err := unix.Recvfrom(a.fd, into, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			err = unix.ECONNRESET
		}
		return max(n, 0), err
	}
}

// rootPeer returns the process at the other end of a socket, as this process sees it. The error is that it is not root's.
func rootPeer(fd int) (pid int, err error) {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	if peer.Uid != 0 {
		return 0, fmt.Errorf("user %d has the other end: %w", peer.Uid, unix.EPERM)
	}
	return int(peer.Pid), nil
}

// Await is the CNI_COMMAND of a request that is no verb: the agent answers once the policies hold that the cluster has for the Pod of
// CNI_ARGS, in the datapath of the directories and of the layout that the request names. Its version does not count.
const Await = "AWAIT"

// again is how long AwaitPolicies waits before it looks for an agent again: one that starts anew takes its time.
const again = 100 * time.Millisecond

// AwaitPolicies sends a request of Await to the agent at a socket, and to the next one if that ends, until one answers that the policies
// hold, or ctx ends. The error tells why they do not yet, or that there is no agent.
func AwaitPolicies(ctx context.Context, socket string, r Request) error {
	for {
		err := awaitOnce(ctx, socket, r)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}

func awaitOnce(ctx context.Context, socket string, r Request) error {
	agent, err := dial(socket)
	if err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	defer agent.close()
	answer, err := agent.ask(ctx, r)
	switch {
	case errors.Is(err, errDeclined):
		return fmt.Errorf("%s: the agent has another layout or other directories, or starts or ends: %w", socket, err)
	case err == nil && answer.Exit != 0:
		err = errors.New(string(answer.Stderr))
	}
	return err
}
