// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net"
	"slices"
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
	// Netns is a descriptor of the pod's network namespace; -1 if the plugin has sent none.
	Netns int

	conn *net.UnixConn
}

// Receive receives the request of a connection, and takes the connection: Close closes it. It declines a request of another
// form. The error matches unix.EPERM if the plugin is not root.
func Receive(conn *net.UnixConn) (_ *Call, err error) {
	c := &Call{Netns: -1, conn: conn}
	defer func() {
		if errors.Is(err, errForm) {
			_ = c.Decline()
		}
		if err != nil {
			c.Close()
		}
	}()
	if c.PID, err = rootPeer(conn); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	packet, control := make([]byte, MaxRequest), make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := conn.ReadMsgUnix(packet, control)
	if err != nil {
		return nil, err
	}
	if err := c.takeNetns(control[:m]); err != nil {
		return nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, errForm
	}
	if c.Request, err = decode(packet[:n]); err != nil {
		return nil, err
	}
	return c, conn.SetReadDeadline(time.Time{})
}

// takeNetns takes the descriptor that came with a packet, if one did.
func (c *Call) takeNetns(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return err
	}
	for _, message := range messages {
		descriptors, err := unix.ParseUnixRights(&message)
		if err != nil {
			return errForm
		}
		for _, fd := range descriptors {
			if c.Netns >= 0 {
				_ = unix.Close(fd)
				continue
			}
			c.Netns = fd
		}
	}
	return nil
}

// Context returns a context that ends with ctx, and once the plugin has ended or has given up.
func (c *Call) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = c.conn.Read(make([]byte, 1))
		cancel()
	}()
	return ctx, cancel
}

// answerPacket is the size of a packet of text in bytes: any socket's buffer takes it.
const answerPacket = 32 << 10

// Decline leaves the verb to the plugin.
func (c *Call) Decline() error { return c.write([]byte(declined)) }

// Answer sends the result.
func (c *Call) Answer(a Answer) error {
	packets := [][]byte{a.head()}
	for part := range slices.Chunk(append(a.Stdout, a.Stderr...), answerPacket) {
		packets = append(packets, part)
	}
	return c.write(packets...)
}

func (c *Call) write(packets ...[]byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	for _, packet := range packets {
		if _, err := c.conn.Write(packet); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the connection.
func (c *Call) Close() {
	if c.Netns >= 0 {
		_ = unix.Close(c.Netns)
	}
	_ = c.conn.Close()
}
