// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// requestTime is how long the plugin may take to send its request.
const requestTime = 5 * time.Second

// Call is a request that an agent has received.
type Call struct {
	Request
	// PID is the plugin's process as this process sees it, 0 if it cannot.
	PID int
	// Plugin is a descriptor of the plugin's file if PID is its client; -1 if PID runs it.
	Plugin int
	// Netns is a descriptor of the pod's network namespace; -1 if the plugin has sent none.
	Netns int

	claim       int
	descriptors []int // the others
	conn        *net.UnixConn
}

// Receive receives the request of a connection, and takes the connection: Close closes it. The error matches unix.EPERM if
// the plugin is not root.
func Receive(conn *net.UnixConn) (_ *Call, err error) {
	c := &Call{Plugin: -1, Netns: -1, claim: -1, conn: conn}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := c.identify(); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	size, err := c.size()
	if err != nil {
		return nil, err
	}
	packet := make([]byte, size+1)
	control := make([]byte, unix.CmsgSpace(3*4))
	n, m, flags, _, err := conn.ReadMsgUnix(packet, control)
	if err != nil {
		return nil, err
	}
	if c.descriptors, err = parseDescriptors(control[:m]); err != nil {
		return nil, err
	}
	if n != size || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, errForm
	}
	if c.Request, err = decode(packet[:n]); err != nil {
		return nil, err
	}
	return c, c.takeDescriptors()
}

// identify sets the process of the plugin, which must be root's.
func (c *Call) identify() error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		if err = requireRoot(int(fd)); err != nil {
			return
		}
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			c.PID = int(peer.Pid)
		}
	})
	return errors.Join(controlErr, err)
}

// size waits for the request and returns its size in bytes.
func (c *Call) size() (n int, err error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	readErr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err := errors.Join(readErr, err); err != nil {
		return 0, err
	}
	if n == 0 || n > MaxRequest {
		return 0, errForm
	}
	return n, nil
}

// parseDescriptors returns the descriptors that came with a packet. The error is that they are none, or others came too.
func parseDescriptors(control []byte) (all []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for _, message := range messages {
		descriptors, err := unix.ParseUnixRights(&message)
		if err != nil {
			return all, err
		}
		all = append(all, descriptors...)
	}
	return all, nil
}

// takeDescriptors tells what each descriptor is.
func (c *Call) takeDescriptors() error {
	kinds := []*int{&c.claim, &c.Netns}
	if c.client {
		kinds = []*int{&c.claim, &c.Plugin, &c.Netns}
	}
	for len(kinds) > 0 && len(c.descriptors) > 0 {
		*kinds[0] = c.descriptors[0]
		kinds, c.descriptors = kinds[1:], c.descriptors[1:]
	}
	if len(c.descriptors) > 0 || c.claim < 0 || c.client && c.Plugin < 0 {
		return errForm
	}
	return unix.SetNonblock(c.claim, true)
}

// Begin takes the claim: the verb is this process's now. The error says that the plugin does it, or has ended.
func (c *Call) Begin() error {
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if err := c.Waits(); err != nil {
		return err
	}
	if err := takeClaim(c.claim); err != nil {
		return fmt.Errorf("the plugin does not wait any more: %w", err)
	}
	return nil
}

// Waits returns an error if the plugin has ended, or wants the verb undone.
func (c *Call) Waits() error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		n, _, recvErr := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if recvErr == nil && n == 0 {
			err = io.EOF
		}
	})
	return errors.Join(controlErr, err)
}

// Gone returns a channel that is closed when the plugin has ended, or wants the verb undone.
func (c *Call) Gone() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		_, _ = c.conn.Read(make([]byte, 1))
		close(gone)
	}()
	return gone
}

// answerPacket is the size of a packet of text in bytes: any socket's buffer takes it.
const answerPacket = 32 << 10

// Answer sends the answer.
func (c *Call) Answer(a Answer) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	if _, err := c.conn.Write(a.head()); err != nil {
		return err
	}
	for all := append(a.Stdout, a.Stderr...); len(all) > 0; {
		n, err := c.conn.Write(all[:min(len(all), answerPacket)])
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// Close ends the connection. Without Begin and Answer before, the plugin does the verb.
func (c *Call) Close() {
	for _, fd := range append(c.descriptors, c.claim, c.Plugin, c.Netns) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	_ = c.conn.Close()
}
