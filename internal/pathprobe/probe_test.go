// SPDX-License-Identifier: Apache-2.0

package pathprobe_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/nodenet"
	"mustang/internal/pathprobe"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

func options(w testkit.Wire, node int) pathprobe.Options {
	return pathprobe.Options{Host: w.Nodes[node], At: netip.AddrPortFrom(w.Addresses[1], pathprobe.DefaultPort),
		Port: nodenet.DefaultPort}
}

// listen runs the listening end on the second node until the test ends.
func listen(t *testing.T, w testkit.Wire) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pathprobe.Listen(ctx, options(w, 1), func() error {
			close(ready)
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		testkit.Check(t, <-done == nil, "the listening end fails")
	})
}

func drop(node int) []testkit.FrameEdit { return []testkit.FrameEdit{testkit.DropLarger(1400, node)} }

func spoil(node, least int, both bool) []testkit.FrameEdit {
	return []testkit.FrameEdit{testkit.SpoilChecksums(node, nodenet.DefaultPort, least, both)}
}

// noTunnel drops VXLAN packets.
func noTunnel(_ int, frame []byte) []byte {
	const protocol, port = 14 + 9, 14 + 20 + 2
	if len(frame) > port+2 && frame[protocol] == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(frame[port:]) == nodenet.DefaultPort {
		return nil
	}
	return frame
}

// TestProbe probes paths with one fault each, and without one.
func TestProbe(t *testing.T) {
	testkit.RequireRoot(t)
	for name, c := range map[string]struct {
		v6          bool
		change      []testkit.FrameEdit
		there, back int     // 0: 1500
		stalled     bool    // without a wrong checksum
		wrong       [2]bool // at the other node, at this one
	}{
		"clean":                  {},
		"clean, IPv6":            {v6: true},
		"small MTU":              {change: drop(-1), there: 1400, back: 1400},
		"small MTU, IPv6":        {v6: true, change: drop(-1), there: 1400, back: 1400},
		"small MTU on return":    {change: drop(1), back: 1400},
		"checksums":              {change: spoil(0, 0, false), wrong: [2]bool{true}},
		"both checksums":         {change: spoil(0, 0, true), wrong: [2]bool{true}},
		"checksums of full ones": {change: spoil(0, 1300, false), wrong: [2]bool{true}},
		"checksums on return":    {change: spoil(1, 1300, false), wrong: [2]bool{1: true}},
		"no tunnel":              {change: []testkit.FrameEdit{noTunnel}, stalled: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testkit.NewWire(t, c.v6, c.change...)
			listen(t, w)
			before := testkit.Must(rtnl.In(w.Nodes[0]).Devices())(t)
			path, err := pathprobe.Probe(t.Context(), options(w, 0))
			testkit.Succeed(t, err)
			t.Logf("%+v", path)
			testkit.Check(t, path.Device == "eth0" && path.MTU == 1500 && path.There == cmp.Or(c.there, 1500) &&
				path.Back == cmp.Or(c.back, 1500),
				"path %+v", path)
			testkit.Check(t, (path.Tunnel.Stalled != nil) == (c.stalled || c.wrong != [2]bool{}) &&
				[2]bool{path.Tunnel.WrongThere > 0, path.Tunnel.WrongHere > 0} == c.wrong, "tunnel %+v", path.Tunnel)
			after := testkit.Must(rtnl.In(w.Nodes[0]).Devices())(t)
			testkit.Check(t, len(after) == len(before), "devices of the node: %v", after)
		})
	}
}

// TestNoAnswer probes a node where nobody listens, and a path that drops everything.
func TestNoAnswer(t *testing.T) {
	testkit.RequireRoot(t)
	for name, change := range map[string]testkit.FrameEdit{
		"refused": func(_ int, f []byte) []byte { return f },
		"nothing": func(_ int, f []byte) []byte {
			if f[14+9] == unix.IPPROTO_UDP {
				return nil
			}
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pathprobe.Probe(t.Context(), options(testkit.NewWire(t, false, change), 0))
			testkit.Fails(t, err, "no answer from 192.0.2.2:7178", name)
			testkit.Check(t, errors.As(err, new(*pathprobe.NoAnswerError)), "%T", err)
		})
	}
}
