// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// way is how packets of a lab travel, and how its services are implemented.
type way struct {
	name          string
	datapath, via string
	fromHost      bool // services reach the host's own processes as well
	// links are the tested links of the way; empty means all. call passes bridged packets to the rules.
	links []string
	call  bool
}

func ways() []way {
	links, bridge := []string{"veth", "bridge", "macvlan"}, []string{"bridge"}
	return []way{
		{name: "kernel", datapath: lab.DatapathKernel, via: lab.ViaNone},
		{name: "per packet", datapath: lab.DatapathEBPF, via: lab.ViaEBPFTC},
		{name: "per packet, call-on", datapath: lab.DatapathEBPF, via: lab.ViaEBPFTC, links: bridge, call: true},
		{name: "socket", datapath: lab.DatapathKernel, via: lab.ViaEBPFSocket, fromHost: true},
		{name: "socket and per packet", datapath: lab.DatapathEBPF, via: lab.ViaEBPFSocket, fromHost: true},
		{name: "iptables", datapath: lab.DatapathKernel, via: lab.ViaIPTables, links: links},
		{name: "nftables", datapath: lab.DatapathKernel, via: lab.ViaNFTables, links: links},
		{name: "iptables, call-on", datapath: lab.DatapathKernel, via: lab.ViaIPTables, links: bridge, call: true},
		{name: "nftables, call-on", datapath: lab.DatapathKernel, via: lab.ViaNFTables, links: bridge, call: true},
	}
}

// options returns the options of the way with a link, unless it is not tested with that.
func (w way) options(link string) (_ lab.Options, ok bool) {
	return options(lab.Options{Link: link, Datapath: w.datapath, Via: w.via, NetfilterCall: w.call}), len(w.links) == 0 ||
		slices.Contains(w.links, link)
}

// leg is a path between two places with the address that the server sees.
type leg struct {
	name           string
	from, to       string
	target, listen netip.AddrPort
	source         netip.Addr // as the server sees it; any if invalid
}

func legs(w way, family int) []leg {
	port := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, lab.ServicePort) }
	a, b, host := lab.PodAIPs[family], lab.PodBIPs[family], lab.Gateways[family].Addr()
	service := lab.Services()[family].Frontend
	all := []leg{
		{"pod to pod", lab.PodB, lab.PodA, port(a), port(a), b},
		{"pod to pod, back", lab.PodA, lab.PodB, port(b), port(b), a},
		{"pod to host", lab.PodA, lab.Host, port(host), port(host), a},
		{"host to pod", lab.Host, lab.PodA, port(a), port(a), netip.Addr{}},
		{"pod to itself", lab.PodA, lab.PodA, port(a), port(a), a},
	}
	if w.via == lab.ViaNone {
		return all
	}
	seen := b
	if w.via == lab.ViaIPTables || w.via == lab.ViaNFTables {
		seen = netip.Addr{} // the host's where the link is not routed
	}
	all = append(all,
		leg{"cluster IP", lab.PodB, lab.PodA, service, port(a), seen},
		// The pod sees itself, or the service's address in place of its own.
		leg{"cluster IP, hairpin", lab.PodA, lab.PodA, service, port(a), netip.Addr{}},
	)
	if w.fromHost {
		all = append(all, leg{"cluster IP from the host", lab.Host, lab.PodA, service, port(a), netip.Addr{}})
	}
	return all
}

// TestConformance sends real traffic through each link mode: by the kernel's own
// datapath and ours, to pods, to the host, and to services in each way.
func TestConformance(t *testing.T) {
	s := store(t)
	for _, mode := range podlink.Modes() {
		for _, w := range ways() {
			o, ok := w.options(mode.Name())
			if !ok {
				continue
			}
			t.Run(mode.Name()+"/"+w.name, func(t *testing.T) {
				testkit.RequireMode(t, mode.Probe())
				times := 1
				if o.Datapath == lab.DatapathEBPF && o.Via == lab.ViaEBPFSocket {
					times = again(mode.Name()) // which shows that the first has left nothing in the way
				}
				for range times {
					testLegs(t, s, o, w)
					left := leftovers(t, o.Name, s.Dir)
					testkit.Check(t, len(left) == 0, "left behind: %q", left)
				}
			})
		}
	}
}

// again returns how often a lab with all programs is built: in the short form, twice for one mode of each kind.
func again(mode string) int {
	if slices.Contains([]string{"veth", "bridge", "ipvlan-l2", "ovs-internal"}, mode) {
		return 2
	}
	return testkit.Repeats(1, 2)
}

func testLegs(t *testing.T, s lab.Store, o lab.Options, w way) {
	t.Run("lab", func(t *testing.T) {
		l := up(t, s, o)
		clients := map[string]*client{}
		for _, at := range l.Places() {
			if at == lab.Host || at == lab.PodA || at == lab.PodB {
				clients[at] = startClient(t, l, at)
			}
		}
		for family, name := range []string{"IPv4", "IPv6"} {
			for _, leg := range legs(w, family) {
				t.Run(leg.name+"/"+name, func(t *testing.T) { testLeg(t, l, clients[leg.from], leg) })
			}
		}
	})
}

// sizes are the payloads: a transaction, what fills a packet, what makes batches of segments, and fragments.
func sizes(v6 bool) map[string][]int {
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	return map[string][]int{"tcp": {1, 1 << 19}, "udp": {1, podlink.DefaultMTU - headers, 8000}}
}

func testLeg(t *testing.T, l *lab.Lab, from *client, leg leg) {
	for network, payloads := range sizes(leg.target.Addr().Is6()) {
		testkit.Echo(t, place(t, l, leg.to), network, leg.listen.String())
		for _, size := range payloads {
			answer := from.ask(t, question{Network: network, Target: leg.target.String(), Size: size})
			if answer.Error != "" {
				t.Errorf("%s, %d bytes: %s", network, size, answer.Error)
				continue
			}
			want := fmt.Sprint(leg.target)
			testkit.Check(t, answer.Peer == want, "%s: the client sees %s instead of %s", network, answer.Peer, want)
			seen, err := netip.ParseAddrPort(answer.Seen)
			testkit.Check(t, err == nil && (!leg.source.IsValid() || seen.Addr() == leg.source),
				"%s: the server sees %q instead of %s", network, answer.Seen, leg.source)
		}
	}
	if leg.target == leg.listen {
		for _, size := range []int{8, 1400} {
			if answer := from.ask(t, question{Network: "icmp", Target: leg.target.Addr().String(),
				Size: size}); answer.Error != "" {
				t.Errorf("icmp, %d bytes: %s", size, answer.Error)
			}
		}
	}
}

// clientVariable makes the test's executable a client, which sends the requested traffic from the place where it was
// started. Socket translation reaches a lab's own processes only: the test itself cannot be the client.
const clientVariable = "MUSTANG_TEST_LAB_CLIENT"

// question is a request to a client.
type question struct {
	Network string // tcp, udp or icmp
	Target  string // address, with a port unless it is icmp
	Size    int    // of the payload, in bytes
}

// answer is its answer.
type answer struct {
	Seen  string // the client's address as the server sees it
	Peer  string // the server's address as the client sees it
	Error string
}

// client is a process in a lab.
type client struct {
	in  *json.Encoder
	out *json.Decoder
}

func startClient(t *testing.T, l *lab.Lab, place string) *client {
	t.Helper()
	exe := testkit.Must(os.Executable())(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clientVariable+"=1")
	cmd.Stderr = os.Stderr
	in := testkit.Must(cmd.StdinPipe())(t)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Succeed(t, l.Start(place, cmd))
	t.Cleanup(func() {
		_ = in.Close()
		err := cmd.Wait()
		testkit.Check(t, err == nil, "client at %s: %v", place, err)
	})
	return &client{json.NewEncoder(in), json.NewDecoder(out)}
}

func (c *client) ask(t *testing.T, q question) (a answer) {
	t.Helper()
	testkit.Succeed(t, errors.Join(c.in.Encode(q), c.out.Decode(&a)))
	return a
}

func serveClient() int {
	here, err := netns.Current()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var a answer
		if err := q.send(here, &a); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return 1
		}
	}
}

// nobody stands in for a testing.TB outside of tests.
type nobody struct{ testing.TB }

func (nobody) Helper() {}

func (nobody) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (q question) send(here *netns.Namespace, a *answer) error {
	payload := make([]byte, q.Size)
	_, _ = rand.NewChaCha8([32]byte{byte(q.Size)}).Read(payload) // it never fails
	if q.Network == "icmp" {
		addr, err := netip.ParseAddr(q.Target)
		if err != nil {
			return err
		}
		return testkit.Ping(here, addr, q.Size)
	}
	conn, err := testkit.Dial(here, q.Network, q.Target)
	if err != nil {
		return err
	}
	a.Peer = conn.RemoteAddr().String()
	if err := conn.Close(); err != nil {
		return err
	}
	seen, err := testkit.RoundTrip(nobody{}, here, q.Network, q.Target, payload)
	a.Seen = seen.String()
	return err
}
