// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestMade has a line for each way to make a connection, and for a call of a socket that is refused.
func TestMade(t *testing.T) {
	testkit.RequireTool(t, "bash")
	l := newLab(t, kept.Root)
	server := testkit.Echo(t, l.b, "tcp", podB+":0").String()
	const tcp, none = "10.96.0.9:80", "10.96.0.10:80"
	l.serve(service.Service{Protocol: service.UDP}, served, portB)
	l.serve(service.Service{Protocol: service.TCP}, tcp, server)
	l.serve(service.Service{Protocol: service.TCP}, none)
	group := testkit.Cgroup(t)
	testkit.Must(l.d.Sockets().Attach(t.Context(), group))(t)
	l.monitor()
	connect := func(to string) func() {
		host, port, _ := strings.Cut(to, ":")
		return func() { l.inGroup(group, "exec 3<>/dev/tcp/"+host+"/"+port) }
	}
	through := ofA(served, "udp")
	through.Verdict, through.Backend, through.BackendPod = flows.Made, portB, "shop/b"
	l.awaits(through, func() {
		l.flush()
		fromA(portA, served)(l)
	})
	l.policies(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all, namespace: shop},
  spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{}]}}`)
	l.awaits(line{Verdict: flows.Made, Pod: "shop/a", Source: portA, Destination: portB, DestinationPod: "shop/b"},
		func() {
			l.flush()
			fromA(portA, portB)(l)
		})
	l.awaits(line{
		Verdict: flows.Made, Pod: "shop/a", Destination: tcp, Service: tcp + "/tcp", Backend: server, BackendPod: "shop/b",
		Place: "socket",
	}, connect(tcp))
	l.awaits(line{
		Verdict: flows.Dropped, Reason: "no_backend", Pod: "shop/a", Destination: none, Service: none +
			"/tcp", Place: "socket",
	}, connect(none))
}

// inGroup runs a command of bash in pod shop/a and a control group, however it ends.
func (l *lab) inGroup(group, command string) {
	l.t.Helper()
	dir := testkit.Must(os.Open(group))(l.t)
	defer dir.Close()
	cmd := exec.Command("bash", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	testkit.Succeed(l.t, l.a.Do(cmd.Start))
	_ = cmd.Wait()
}

// TestText has lines for people.
func TestText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC)
	web, db := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:80")
	for _, c := range []struct {
		of    flows.Event
		names line
		want  string
	}{
		{
			flows.Event{Verdict: flows.Made, Source: web, Destination: netip.MustParseAddrPort("10.96.0.1:80"), Backend: db,
				Protocol: service.TCP},
			line{Pod: "shop/web", SourcePod: "shop/web", Service: "10.96.0.1:80/tcp", BackendPod: "shop/db"},
			"03:04:05.006 made tcp shop/web 10.0.0.1:4000 > service 10.96.0.1:80 > shop/db 10.0.0.2:80",
		},
		{
			flows.Event{Verdict: flows.Dropped, Reason: "source", Source: web, Destination: db, Protocol: service.TCP, Flags: 18,
				Length: 60},
			line{Pod: "shop/evil", SourcePod: "shop/web"},
			"03:04:05.006 dropped source at shop/evil tcp shop/web 10.0.0.1:4000 > 10.0.0.2:80 SYN,ACK 60 bytes",
		},
		{
			flows.Event{Verdict: flows.Dropped, Reason: "ethertype", EtherType: 0x88cc, MAC: []byte{2, 0, 0, 0, 0, 1},
				Length: 60},
			line{Pod: cli.Printable("shop/\x1b[31mevil\n")},
			"03:04:05.006 dropped ethertype at shop/?[31mevil? ethertype 0x88cc from 02:00:00:00:00:01 60 bytes",
		},
		{
			flows.Event{
				Verdict: flows.Audited, Reason: "policy_egress", Source: netip.AddrPortFrom(web.Addr(), 0),
				Destination: netip.AddrPortFrom(db.Addr(), 0), Protocol: unix.IPPROTO_ICMP, Message: 8,
			},
			line{Rule: "NetworkPolicy shop/none"},
			"03:04:05.006 audited policy_egress icmp echo request 10.0.0.1 > 10.0.0.2 by NetworkPolicy shop/none",
		},
		{ // an address that was in no packet is left out
			flows.Event{
				Verdict: flows.Denied, Source: netip.MustParseAddrPort("[fe80::2]:0"),
				Destination: netip.AddrPortFrom(db.Addr(), 0),
				Protocol:    unix.IPPROTO_ICMPV6, Message: 128, Rule: 1,
			},
			line{SourcePod: "mac/m2", DestinationPod: "mac/m3"},
			"03:04:05.006 denied icmp echo request mac/m2 fe80::2 > mac/m3",
		},
		{
			flows.Event{
				Verdict: flows.Denied, Source: netip.AddrPortFrom(web.Addr(), 0),
				Destination: netip.MustParseAddrPort("[fe80::1]:0"),
				Protocol:    unix.IPPROTO_ICMPV6, Message: 128, Rule: 1,
			},
			line{SourcePod: "mac/m2", DestinationPod: "mac/m1"},
			"03:04:05.006 denied icmp echo request mac/m2 > mac/m1 fe80::1",
		},
	} {
		c.of.Time = at
		c.names.describe(&c.of)
		got := c.names.text(at)
		testkit.Check(t, got == c.want, "%q\nwant %q", got, c.want)
	}
}

// TestFilter has an event, and filters that do and do not select it.
func TestFilter(t *testing.T) {
	e := flows.Event{
		Verdict: flows.Made, Source: netip.MustParseAddrPort("10.0.0.1:4000"),
		Destination: netip.MustParseAddrPort("10.96.0.1:80"),
		Backend:     netip.MustParseAddrPort("10.0.0.2:8080"),
	}
	l := line{SourcePod: "shop/web", BackendPod: "shop/db"}
	for _, c := range []struct {
		flags string
		want  bool
	}{
		{"", true},
		{"--pod shop/db", true},
		{"--pod shop/web", true},
		{"--pod hop/web,other/web", false},
		{"--address 10.0.0.2", true},
		{"--address ::ffff:10.0.0.2", true},
		{"--address 192.0.2.0/24,10.0.0.7/24", true},
		{"--address 10.0.0.3", false},
		{"--port 80 --pod shop/db", true},
		{"--port 80 --pod shop/api", false},
		{"--port 53", false},
		{"--verdict dropped --verdict made", true},
		{"--verdict dropped", false},
	} {
		f, err := parseFilter(c.flags)
		got := f.matches(&e) && f.matchesPods(&l)
		testkit.Check(t, got == c.want && err == nil, "%s selects: %v, want %v; %v", c.flags, got, c.want, err)
	}
	for _, flags := range []string{
		"--address web", "--address ::ffff:10.0.0.0/104", "--port 65536", "--port 0", "--verdict lost", "--pod /",
		"--pod a/b/c", "--pod web",
	} {
		_, err := parseFilter(flags)
		testkit.Check(t, err != nil, "no error of %s", flags)
	}
}

func parseFilter(flags string) (f filter, err error) {
	var cmd cobra.Command
	f.add(&cmd)
	if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
		return f, err
	}
	return f, nil
}

// TestNoteAbsent prints which pods do not exist, before the monitor waits for them.
func TestNoteAbsent(t *testing.T) {
	var said strings.Builder
	m := monitor{
		Config: &cli.Config{Environment: cli.Environment{Stderr: &said}},
		filter: filter{pods: []string{"shop/web", "shop/db", "shop/webb"}},
		names: &names{read: time.Now(), addresses: map[netip.Addr]string{netip.MustParseAddr("10.0.0.1"): "shop/web",
			netip.MustParseAddr("10.0.0.2"): "shop/db"}},
	}
	if err := m.noteAbsent(); err != nil ||
		said.String() != "mustang: note: there is no pod shop/webb now; did you mean shop/web?\n" {
		t.Errorf("it says %q: %v", said.String(), err)
	}
}

// TestOneTrace refuses a second trace, and ends one whose datapath is removed.
func TestOneTrace(t *testing.T) {
	testkit.RequireRoot(t)
	root := testkit.BPFFS(t) + "/mustang"
	testkit.Succeed(t, testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root}))(t).Close())
	run := func(ctx context.Context) error {
		cmd := trace(&cli.Config{Environment: cli.Environment{Stdout: io.Discard, Stderr: io.Discard}, BPFRoot: root})
		cmd.SetArgs([]string{})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.ExecuteContext(ctx)
	}
	ended := make(chan error, 1)
	start := func() { ended <- run(t.Context()) }
	go start()
	testkit.Eventually(t, 10*time.Second, func() error {
		select {
		case <-ended: // the second one was first
			go start()
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := run(ctx); err == nil || !strings.Contains(err.Error(), "another monitor or policy trace runs") {
			return fmt.Errorf("a second trace: %v", err)
		}
		return nil
	})
	testkit.Succeed(t, objects.Remove(t.Context(), root))
	if err := <-ended; err == nil || err.Error() != "the datapath was removed: there is nothing to monitor any more" {
		t.Errorf("the trace ends with %v", err)
	}
}
