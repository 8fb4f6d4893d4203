// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where the plugin looks for an agent, in a directory that only root can open.
const DefaultSocket = "/run/mustang/agent/cni.sock"

// SocketVariable is the environment variable with another socket, or none: for tests and benchmarks.
const SocketVariable = "MUSTANG_CNI_SOCKET"

// MaxRequest is the largest size of a request in bytes. The plugin does verbs with larger requests itself.
const MaxRequest = 128 << 10

const (
	protocol   = "mustang-cni 2"        // the form of the packets
	headFields = 3                      // of a request, before its variables
	headSize   = 9                      // of an answer: the exit status, and the lengths of stdout and stderr
	declined   = "-"                    // the only packet of an answer without a result
	maxText    = 16 << 20               // bytes of an answer
	again      = 100 * time.Millisecond // until AwaitPolicies tries again: an agent takes time to start
)

// answerTime is how long the plugin waits for an answer. A verb waits at most half of it for a lock.
var answerTime = time.Minute

var (
	errForm     = errors.New("not a request of this version")
	errDeclined = errors.New("the agent has declined")
)

// Variables returns the names of a request's environment variables: the CNI specification's, and the plugin's own.
func Variables() []string {
	return []string{
		"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
		"MUSTANG_CNI_STATE_DIR", "MUSTANG_CNI_RUN_DIR", "MUSTANG_BPF_ROOT", "MUSTANG_CNI_CGROUP",
	}
}

// Request is a verb.
type Request struct {
	Version     string            // of the plugin
	Layout      string            // of the datapath's maps that the plugin supports
	Environment map[string]string // the variables that are not empty
	Config      []byte            // the network configuration, as the plugin has read it
}

// Answer is the output of the plugin, and its exit status.
type Answer struct {
	Stdout, Stderr []byte
	Exit           byte
}

// encode returns the packet: the protocol, version, layout and variables, each with a zero byte at its end, a further
// zero byte, and the configuration.
func (r Request) encode() ([]byte, error) {
	fields := []string{protocol, r.Version, r.Layout}
	for _, name := range Variables() {
		if value := r.Environment[name]; value != "" {
			fields = append(fields, name+"="+value)
		}
	}
	packet := append([]byte(strings.Join(fields, "\x00")+"\x00\x00"), r.Config...)
	if len(packet) > MaxRequest {
		return nil, fmt.Errorf("a request of %d bytes: %w", len(packet), unix.EMSGSIZE)
	}
	return packet, nil
}

func decode(packet []byte) (r Request, err error) {
	head, config, ok := strings.Cut(string(packet), "\x00\x00")
	fields := strings.Split(head, "\x00")
	if !ok || len(fields) < headFields || fields[0] != protocol {
		return r, errForm
	}
	r = Request{Version: fields[1], Layout: fields[2], Environment: map[string]string{}, Config: []byte(config)}
	for _, f := range fields[headFields:] {
		name, value, _ := strings.Cut(f, "=")
		if _, twice := r.Environment[name]; twice || !slices.Contains(Variables(), name) {
			return r, errForm
		}
		r.Environment[name] = value
	}
	return r, nil
}

func (a Answer) head() []byte {
	out := []byte{a.Exit}
	out = binary.LittleEndian.AppendUint32(out, uint32(len(a.Stdout)))
	return binary.LittleEndian.AppendUint32(out, uint32(len(a.Stderr)))
}

func receive(conn *net.UnixConn) (a Answer, err error) {
	var head [headSize + 1]byte
	n, err := conn.Read(head[:])
	switch {
	case err != nil:
		return a, err
	case string(head[:n]) == declined:
		return a, errDeclined
	case n != headSize:
		return a, fmt.Errorf("a head of %d bytes, want %d", n, headSize)
	}
	stdout, stderr := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	if uint64(stdout)+uint64(stderr) > maxText {
		return a, fmt.Errorf("an answer of %d and %d bytes", stdout, stderr)
	}
	text := make([]byte, stdout+stderr)
	_, err = io.ReadFull(conn, text)
	return Answer{Exit: head[0], Stdout: text[:stdout], Stderr: text[stdout:]}, err
}

// Await is a CNI_COMMAND beyond the verbs: the agent answers once the policies for the Pod of CNI_ARGS are in force, in
// the datapath of the request's directories and layout.
const Await = "AWAIT"

// AwaitPolicies sends Await requests until an agent confirms that the policies are in force, or ctx ends. The error is
// the reason why they are not, or that no agent runs.
func AwaitPolicies(ctx context.Context, socket string, r Request) (reason error) {
	for {
		answer, err := ask(ctx, socket, r)
		switch {
		case err == nil && answer.Exit == 0:
			return nil
		case err == nil:
			reason = errors.New(string(answer.Stderr))
		case errors.Is(err, errDeclined):
			reason = fmt.Errorf("%s: agent is starting or ending, or has another layout or directories: %w", socket, err)
		case reason == nil || ctx.Err() == nil:
			reason = err
		}
		select {
		case <-ctx.Done():
			return reason
		case <-time.After(again):
		}
	}
}

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
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return answer, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	begun := time.Now()
	if _, err = conn.Write(packet); err == nil {
		answer, err = receive(conn)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the agent at %s gives no answer within %v", socket, time.Since(begun).Round(time.Second))
	case err != nil && !errors.Is(err, errDeclined):
		err = fmt.Errorf("the agent at %s ended before its answer: %w", socket, err)
	}
	return answer, err
}

// rootPeer returns the process at the other end of a socket. It fails if the process is not root's.
func rootPeer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	if peer.Uid != 0 {
		return 0, fmt.Errorf("user %d has the other end: %w", peer.Uid, unix.EPERM)
	}
	return int(peer.Pid), nil
}

// Limits of a request.
const (
	requestTime  = 5 * time.Second // how long the plugin may take to send its request, or to take an answer
	answerPacket = 32 << 10        // bytes of text in a packet: it fits into any socket's buffer
)

// Call is a request that an agent has received.
type Call struct {
	Request
	PID   int // the plugin's process in this PID namespace; 0: not visible
	Netns int // a descriptor of the pod's network namespace; -1 if the plugin sent none

	conn *net.UnixConn
}

// Receive receives the request of a connection, which it takes over. It declines a malformed request. The error matches
// unix.EPERM if the plugin is not root.
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
			if c.Netns < 0 {
				c.Netns = fd
			} else {
				_ = unix.Close(fd)
			}
		}
	}
	return nil
}

// Context returns a context that ends with ctx, or once the plugin has ended or given up.
func (c *Call) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = c.conn.Read(make([]byte, 1))
		cancel()
	}()
	return ctx, cancel
}

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
