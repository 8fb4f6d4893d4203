// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/host"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/testkit"
)

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	testkit.Succeed(t, err)
	return text
}

// TestRecordedOutputs reads what iperf3 3.12, netperf 2.7.0 and sockperf 3.7 printed.
func TestRecordedOutputs(t *testing.T) {
	for _, test := range []struct {
		tool           Engine
		workload       string
		client, server string
		count          uint64
		rate           float64
	}{
		{iperf3, load.TCPStream, "iperf3-client.json", "iperf3-server.json", 1580466176, 12.6416},
		{iperf3, load.UDPStream, "iperf3-udp-client.json", "iperf3-udp-server.json", 80290152, 0.64215},
		{netperf, load.TCPRR, "netperf-rr.txt", "", 30063, 30004.4},
		{netperf, load.TCPStream, "netperf-stream.txt", "", 2368733184, 18.91691},
		{sockperf, load.TCPRR, "sockperf.txt", "", 7839, 14330.9},
	} {
		o := outputs{client: recorded(t, test.client)}
		if test.server != "" {
			o.server = recorded(t, test.server)
		}
		m, err := test.tool.read(Traffic{Workload: test.workload}, o)
		if err != nil {
			t.Errorf("%s: %v", test.client, err)
			continue
		}
		m.Workload = test.workload
		m.SetRate()
		testkit.Check(t, m.Count == test.count && !(m.Rate < test.rate*0.9999) && !(m.Rate > test.rate*1.0001),
			"%s: %d and %g %s, want %d and %g", test.client, m.Count, m.Rate, m.Unit, test.count, test.rate)
		if test.server != "" && (!m.ClientLocal.IsValid() || m.ClientLocal != m.ServerPeer || m.ServerLocal != m.ClientPeer) {
			t.Errorf("%s: %v to %v, and %v to %v", test.client, m.ClientLocal, m.ClientPeer, m.ServerPeer, m.ServerLocal)
		}
		for _, cut := range []int{0, 1, len(o.client) / 4} {
			_, err := test.tool.read(Traffic{Workload: test.workload}, outputs{o.client[:cut], o.server})
			testkit.Check(t, err != nil, "%s: the first %d bytes give figures", test.client, cut)
		}
	}
}

// TestPrintedTwice reads figures that a program has printed twice: the last complete ones count.
func TestPrintedTwice(t *testing.T) {
	server := recorded(t, "iperf3-server.json")
	twice := func(text []byte, old, last string) []byte {
		changed := strings.ReplaceAll(string(text), old, last)
		testkit.Require(t, changed != string(text), "no %q", old)
		return []byte(string(text) + changed)
	}
	client, sockperfClient := recorded(t, "iperf3-client.json"), recorded(t, "sockperf.txt")
	for name, test := range map[string]struct {
		tool   Engine
		o      outputs
		count  uint64
		reason string
	}{
		"iperf3": {iperf3, outputs{twice(client, "1580466176", "1580466177"), append(slices.Clone(server),
			server...)}, 1580466177, ""},
		"iperf3, cut off": {iperf3, outputs{append(slices.Clone(client), client[:len(client)/2]...), server},
			1580466176, ""},
		"iperf3, then empty": {iperf3, outputs{append(slices.Clone(client), "{}"...), server}, 1580466176, ""},
		"iperf3, then failed": {iperf3, outputs{append(slices.Clone(client), `{"error": "interrupt"}`...), server}, 0,
			"interrupt"},
		"sockperf": {sockperf, outputs{client: twice(sockperfClient, "ReceivedMessages=7839", "ReceivedMessages=7840")}, 7840,
			""},
	} {
		m, err := test.tool.read(Traffic{Workload: load.TCPStream}, test.o)
		if test.count == 0 {
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.reason), "%s: %v, want %q", name, err, test.reason)
			continue
		}
		testkit.Check(t, err == nil && m.Count == test.count, "%s: count %d, %v; want %d", name, m.Count, err, test.count)
	}
}

// TestOddFiguresAreErrors holds figures that no measurement has.
func TestOddFiguresAreErrors(t *testing.T) {
	for _, text := range []string{"THROUGHPUT=nan\nLOCAL_SEND_CALLS=1\n", "THROUGHPUT=1\nLOCAL_SEND_CALLS=1e99\n",
		"THROUGHPUT=-1\nLOCAL_SEND_CALLS=5\n"} {
		m, err := netperf.read(Traffic{Workload: load.TCPRR}, outputs{client: []byte(text)})
		testkit.Check(t, err != nil, "%q gives %+v", text, m)
	}
	server := recorded(t, "iperf3-server.json")
	for _, text := range []string{
		`{"error": "unable to connect"}`,
		`{"end": {"sum_received": {"seconds": 0, "bytes": 5}}}`,
		`{"end": {"sum_received": {"seconds": 1, "bytes": -5}}}`,
		`{"end": {"sum_received": {"seconds": 1, "bytes": 1e300}}}`,
		`{"end": {"sum_received": {"seconds": 1, "bytes": 5, "packets": 1, "lost_packets": 2}}}`,
	} {
		m, err := iperf3.read(Traffic{Workload: load.TCPStream}, outputs{[]byte(text), server})
		testkit.Check(t, err != nil, "%s gives %+v", text, m)
	}
	text := "sockperf: [Valid Duration] RunTime=0.000 sec; SentMessages=1; ReceivedMessages=1\n"
	m, err := sockperf.read(Traffic{Workload: load.TCPRR}, outputs{client: []byte(text)})
	testkit.Check(t, err != nil, "%q gives %+v", text, m)
}

// TestVersions holds the lines that the programs print for their versions.
func TestVersions(t *testing.T) {
	for text, want := range map[string]struct {
		tool    Engine
		version string
	}{
		"iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.1\n":           {iperf3, "3.12"},
		"Netperf version 2.7.0\n":                             {netperf, "2.7.0"},
		"sockperf, version 3.7-no.git\n   compiled 2021-08\n": {sockperf, "3.7"},
		"nonsense\n": {sockperf, ""},
	} {
		got := want.tool.versionIn(text)
		testkit.Check(t, got == want.version, "%q: version %q, want %q", text, got, want.version)
	}
}

// TestParseAddress reads addresses as the kernel prints them on a little-endian machine.
func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1451":                         "127.0.0.1:5201",
		"0000000000000000FFFF00000AA8A8C0:9C40": "192.168.168.10:40000",
		"000000FD000000009600000000010000:1451": "[fd00::96:0:100]:5201",
	} {
		got, ok := parseAddress(text)
		testkit.Check(t, ok && got == netip.MustParseAddrPort(want), "%s: %v %t, want %s", text, got, ok, want)
	}
	for _, text := range []string{"", "0100007F", "0100:1451", "0100007G:1451", "0100007F:14510"} {
		got, ok := parseAddress(text)
		testkit.Check(t, !ok, "%q: %v", text, got)
	}
}

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
