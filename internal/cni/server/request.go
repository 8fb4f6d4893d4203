// SPDX-License-Identifier: Apache-2.0

package server

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

// protocol changes with the form of the packets.
const protocol = "mustang-cni 2"

// Variables of the environment that a request has: those of the CNI specification, and the plugin's own.
func Variables() []string {
	return []string{
		"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
		"MUSTANG_CNI_STATE_DIR", "MUSTANG_CNI_RUN_DIR", "MUSTANG_BPF_ROOT", "MUSTANG_CNI_CGROUP",
	}
}

// Request is a verb.
type Request struct {
	// Version is that of the plugin, and Layout names the layout of the datapath's maps that it knows.
	Version, Layout string
	// Environment has the variables that are not empty.
	Environment map[string]string
	// Config is the network configuration, as the plugin has read it.
	Config []byte
}

// Answer is what the plugin prints, and its exit status.
type Answer struct {
	Stdout, Stderr []byte
	Exit           byte
}

// encode returns the packet: the protocol, version, layout and variables, each with a zero byte at its end, a further
// zero byte, and the configuration.
func (r Request) encode() ([]byte, error) {
	var out bytes.Buffer
	fields := []string{protocol, r.Version, r.Layout}
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

// headFields is the number of fields of a packet before its variables.
const headFields = 3

// decode parses a packet.
func decode(packet []byte) (r Request, err error) {
	var fields []string
	for {
		field, rest, ok := bytes.Cut(packet, []byte{0})
		if !ok {
			return r, errForm
		}
		packet = rest
		if len(field) == 0 && len(fields) >= headFields {
			break
		}
		fields = append(fields, string(field))
	}
	if fields[0] != protocol {
		return r, errForm
	}
	r = Request{Version: fields[1], Layout: fields[2], Environment: map[string]string{}, Config: bytes.Clone(packet)}
	for _, f := range fields[headFields:] {
		name, value, _ := strings.Cut(f, "=")
		if _, twice := r.Environment[name]; twice || !slices.Contains(Variables(), name) {
			return r, errForm
		}
		r.Environment[name] = value
	}
	return r, nil
}

// headSize is the size of a result's first packet: the exit status, and the lengths of stdout and stderr.
const headSize = 9

// declined is the only packet of an answer without a result.
const declined = "-"

// head returns the first packet of a result. The text follows in packets.
func (a Answer) head() []byte {
	out := []byte{a.Exit}
	out = binary.LittleEndian.AppendUint32(out, uint32(len(a.Stdout)))
	return binary.LittleEndian.AppendUint32(out, uint32(len(a.Stderr)))
}

// maxText is the size of the text of an answer in bytes.
const maxText = 16 << 20

// text returns an answer with its text, of the size that its first packet tells, without content. The error matches
// errDeclined if the agent has declined.
func text(head []byte) (a Answer, all []byte, err error) {
	if string(head) == declined {
		return a, nil, errDeclined
	}
	if len(head) != headSize {
		return a, nil, fmt.Errorf("a head of %d bytes, want %d", len(head), headSize)
	}
	stdout, stderr := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	if uint64(stdout)+uint64(stderr) > maxText {
		return a, nil, fmt.Errorf("an answer of %d and %d bytes", stdout, stderr)
	}
	all = make([]byte, stdout+stderr)
	return Answer{Exit: head[0], Stdout: all[:stdout], Stderr: all[stdout:]}, all, nil
}
