// SPDX-License-Identifier: Apache-2.0

// Package handover is how the CNI plugin hands a verb to an agent that has all its tables open, and how both agree who does it.
// The plugin sends one packet over a unix socket of packets, with descriptors: the claim, and the pod's network namespace. Its client in C
// (cni/client.c), which lies in its place on nodes with an agent, does the same, and runs the plugin where an agent does not do the verb.
// Whoever takes the claim first does the verb, and nobody else: an agent that has not taken it in time is too late, and
// the plugin does the verb itself.
package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where the plugin looks for an agent, in a directory that is root's alone.
const DefaultSocket = "/run/mustang/agent/cni.sock"

// SocketVariable is the environment variable with another socket, or none: for tests and benchmarks.
const SocketVariable = "MUSTANG_CNI_SOCKET"

// MaxRequest is the size of a request in bytes. The plugin does larger ones itself.
const MaxRequest = 128 << 10

// protocol changes with the form of the packets. That of the client has a descriptor more, the plugin's file, after the claim.
const (
	protocol       = "mustang-cni 1"
	clientProtocol = "mustang-cni-client 1"
)

// FullPlugin is the name of the plugin's file beside its client.
const FullPlugin = "mustang-cni-full"

// ResultVariable is the environment variable in which the client tells the plugin how its handover ended: empty if it has found no agent.
const ResultVariable = "MUSTANG_CNI_HANDOVER"

// ParseResult parses the value of ResultVariable. The error is nil if the client has asked no agent; else it matches ErrAlone, ErrHung, or ErrLost
// with the call that was lost.
func ParseResult(value string) (call string, err error) {
	call, lost := strings.CutPrefix(value, "lost ")
	switch {
	case value == "":
		return "", nil
	case lost:
		return call, ErrLost
	case value == "hung":
		return "", fmt.Errorf("%w within %v", ErrHung, answerTime)
	}
	return "", ErrAlone
}

// Variables of the environment that a request has: those of the CNI specification, and the plugin's own.
func Variables() []string {
	return []string{
		"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
		"MUSTANG_CNI_STATE_DIR", "MUSTANG_CNI_RUN_DIR", "MUSTANG_BPF_ROOT", "MUSTANG_CNI_CGROUP", LayoutVariable,
	}
}

// Request is a verb.
type Request struct {
	// Call is a random text of this request.
	Call string
	// Environment has the variables that are not empty.
	Environment map[string]string
	// Config is the network configuration, as the plugin has read it.
	Config []byte

	client bool // the plugin's client sends it
}

// Answer is what the plugin prints, and its exit status.
type Answer struct {
	Stdout, Stderr []byte
	Exit           byte
}

// encode returns the packet: the protocol, call and variables, each with a zero byte at its end, a further zero byte,
// and the configuration.
func (r Request) encode() ([]byte, error) {
	var out bytes.Buffer
	fields := []string{protocol, r.Call}
	for _, name := range Variables() {
		if value := r.Environment[name]; value != "" {
			fields = append(fields, name+"="+value)
		}
	}
	for _, f := range fields {
		out.WriteString(f)
		out.WriteByte(0)
	}
	out.WriteByte(0)
	out.Write(r.Config)
	if out.Len() > MaxRequest {
		return nil, fmt.Errorf("a request of %d bytes: %w", out.Len(), unix.EMSGSIZE)
	}
	return out.Bytes(), nil
}

// errForm is the error of a packet that has another form.
var errForm = errors.New("not a request of this version")

// decode parses a packet.
func decode(packet []byte) (r Request, err error) {
	var fields []string
	for {
		field, rest, ok := bytes.Cut(packet, []byte{0})
		if !ok {
			return r, errForm
		}
		packet = rest
		if len(field) == 0 && len(fields) >= 2 {
			break
		}
		fields = append(fields, string(field))
	}
	if fields[0] != protocol && fields[0] != clientProtocol {
		return r, errForm
	}
	r = Request{Call: fields[1], Environment: map[string]string{}, Config: bytes.Clone(packet), client: fields[0] == clientProtocol}
	for _, f := range fields[2:] {
		name, value, _ := strings.Cut(f, "=")
		if _, twice := r.Environment[name]; twice || !slices.Contains(Variables(), name) {
			return r, errForm
		}
		r.Environment[name] = value
	}
	return r, nil
}

// headSize is the size of an answer's first packet: the exit status, and the lengths of stdout and stderr.
const headSize = 9

// head returns the first packet of an answer. The text follows in packets.
func (a Answer) head() []byte {
	out := []byte{a.Exit}
	out = binary.LittleEndian.AppendUint32(out, uint32(len(a.Stdout)))
	return binary.LittleEndian.AppendUint32(out, uint32(len(a.Stderr)))
}

// maxText is the size of the text of an answer in bytes.
const maxText = 16 << 20

// text returns an answer with its text, of the size that its first packet tells, without content.
func text(head []byte) (a Answer, all []byte, err error) {
	if len(head) != headSize {
		return a, nil, fmt.Errorf("answer of the agent: a head of %d bytes, want %d", len(head), headSize)
	}
	stdout, stderr := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	if uint64(stdout)+uint64(stderr) > maxText {
		return a, nil, fmt.Errorf("answer of the agent: %d and %d bytes", stdout, stderr)
	}
	all = make([]byte, stdout+stderr)
	return Answer{Exit: head[0], Stdout: all[:stdout], Stderr: all[stdout:]}, all, nil
}
