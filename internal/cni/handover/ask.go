// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How long the plugin waits for an agent. The second counts from the first.
var (
	// claimTime is how long an agent may take to begin: others may be before this request.
	claimTime = 2 * time.Second
	// answerTime is how long it may take to finish. Each of its waits for a lock ends after half of it.
	answerTime = time.Minute
)

var (
	// ErrAlone is the error if no agent does the verb, or will: the plugin does it.
	ErrAlone = errors.New("no agent does it")
	// ErrLost is the error if an agent has begun the verb and died. What it has done is recorded, and the plugin does the
	// verb again, as the same call.
	ErrLost = errors.New("the agent ended while it worked")
	// ErrHung is the error if an agent has begun the verb and does not answer. Nobody else may do it meanwhile.
	ErrHung = errors.New("the agent has begun and does not answer")
)

// Agent is a connection to an agent.
type Agent struct{ fd int }

// Dial connects to the agent at a socket. The error matches ErrAlone if there is none, it does not take connections, or it
// is not root's.
func Dial(path string) (*Agent, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, alone(err)
	}
	// Without waiting: EAGAIN says that too many wait already.
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = requireRoot(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, alone(err)
	}
	return &Agent{fd}, nil
}

func alone(err error) error { return fmt.Errorf("%w: %w", ErrAlone, err) }

// Close ends the connection.
func (a *Agent) Close() { _ = unix.Close(a.fd) }

// NewCall returns a text for Request.Call.
func NewCall() (string, error) {
	var random [8]byte
	_, err := unix.Getrandom(random[:], 0)
	return hex.EncodeToString(random[:]), err
}

// Ask sends a request and waits for its answer. netns is the path of the pod's network namespace, or empty. When ctx ends, the
// agent is told to undo the verb, and its answer is still waited for. The error matches ErrAlone, ErrLost or ErrHung.
func (a *Agent) Ask(ctx context.Context, r Request, netns string) (Answer, error) {
	packet, err := r.encode()
	if err != nil {
		return Answer{}, alone(err)
	}
	claim, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return Answer{}, alone(err)
	}
	defer unix.Close(claim)
	descriptors := []int{claim}
	if netns != "" {
		// O_NONBLOCK: opening a FIFO must not block. An agent goes without it, or leaves the error to the plugin.
		if fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
			defer unix.Close(fd)
			descriptors = append(descriptors, fd)
		}
	}
	if err := unix.Sendmsg(a.fd, packet, unix.UnixRights(descriptors...), nil, unix.MSG_NOSIGNAL); err != nil {
		return Answer{}, alone(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(a.fd, unix.SHUT_WR) })
	defer stop()
	answer, err := a.receive(claimTime)
	switch {
	case err == nil:
		return answer, nil
	case takeClaim(claim) == nil: // too late, gone, or it will not do this
		return Answer{}, alone(err)
	case errors.Is(err, unix.ETIMEDOUT):
		answer, err = a.receive(answerTime)
	}
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, unix.ETIMEDOUT):
		return Answer{}, fmt.Errorf("%w within %v", ErrHung, answerTime)
	}
	return Answer{}, fmt.Errorf("%w: %w", ErrLost, err)
}

// receive receives an answer. The error matches unix.ETIMEDOUT if none has begun to arrive in time.
func (a *Agent) receive(limit time.Duration) (Answer, error) {
	var first [headSize + 1]byte
	n, err := a.packet(first[:], limit)
	if err != nil {
		return Answer{}, err
	}
	answer, rest, err := text(first[:n])
	for err == nil && len(rest) > 0 {
		n, err = a.packet(rest, answerTime)
		rest = rest[n:]
	}
	if errors.Is(err, unix.ETIMEDOUT) {
		err = fmt.Errorf("answer of the agent: cut short")
	}
	return answer, err
}

// packet receives a packet, of one byte at least.
func (a *Agent) packet(into []byte, limit time.Duration) (int, error) {
	for end := time.Now().Add(limit); ; {
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

// takeClaim takes the claim of a request: the counter of an eventfd. Who finds it at zero is too late.
func takeClaim(fd int) error {
	var counter [8]byte
	for {
		n, err := unix.Read(fd, counter[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n != len(counter) || binary.NativeEndian.Uint64(counter[:]) != 1:
			return errForm
		}
		return nil
	}
}

// requireRoot returns an error unless the other end of a socket is root's.
func requireRoot(fd int) error {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && peer.Uid != 0 {
		err = fmt.Errorf("user %d has the other end: %w", peer.Uid, unix.EPERM)
	}
	return err
}
