// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net/netip"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/host"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestRunWithoutAddressesIsUnseen has a client that ends before anyone sees its socket.
func TestRunWithoutAddressesIsUnseen(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "sockperf")
	store := lab.Store{Dir: t.TempDir()}
	l, err := store.Up(t.Context(), lab.Options{Name: "unseen", Topology: lab.TopologyNode, Link: lab.LinkHost,
		Disk: t.TempDir()})
	testkit.Succeed(t, err)
	defer func() {
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
	}()
	at := netip.MustParseAddrPort("127.0.0.1:5201")
	cpus, err := host.CPUPair{}.Resolve()
	testkit.Succeed(t, err)
	traffic := Traffic{
		Lab: l, Path: evidence.Path{Client: lab.Host, Server: lab.Host, Connect: at, Listen: at},
		Workload: load.TCPRR, Seconds: 1, CPUs: cpus,
	}
	silent := sockperf
	silent.drive = func(Traffic) []string { return []string{"true"} }
	silent.read = func(Traffic, outputs) (load.Measurement, error) { return load.Measurement{Count: 1, Seconds: 1}, nil }
	m, err := silent.Run(t.Context(), traffic)
	testkit.Check(t, errors.Is(err, ErrUnseen), "%+v, %v, want %v", m, err, ErrUnseen)
}
