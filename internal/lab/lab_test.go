// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

var labs atomic.Int64

// options returns options with a name of their own.
func options(o lab.Options) lab.Options {
	o.Name = fmt.Sprintf("test-%d-%d", os.Getpid(), labs.Add(1))
	if o.Topology == "" {
		o.Topology = "pod-links"
	}
	return o
}

// store returns a store that no other test sees.
func store(t *testing.T) lab.Store {
	t.Helper()
	testkit.RequireRoot(t)
	return lab.Store{Dir: t.TempDir() + "/state"}
}

func up(t *testing.T, s lab.Store, o lab.Options) *lab.Lab {
	t.Helper()
	l, err := s.Up(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if l.OVSDatapath() == podlink.OVSUserSpace {
		testkit.NeedsOther(t)
	}
	return l
}

func place(t *testing.T, l *lab.Lab, name string) *nl.Namespace {
	t.Helper()
	ns, err := l.Namespace(name)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// variants are all labs that differ in how packets travel.
func variants() map[string]lab.Options {
	all := map[string]lab.Options{}
	for _, link := range []string{"veth", "bridge", "bridge call-on", "macvlan"} {
		name, call := strings.CutSuffix(link, " call-on")
		for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables} {
			all[link+" "+via] = lab.Options{Link: name, NetfilterCall: call, Datapath: lab.DatapathKernel, Via: via}
		}
		all[link+" ebpf"] = lab.Options{Link: name, NetfilterCall: call, Datapath: lab.DatapathEBPF}
	}
	return all
}

// TestService reaches pod-a from pod-b in every lab: by its own address and by
// the service, by TCP and UDP, IPv4 and IPv6, and proves that it was pod-a.
func TestService(t *testing.T) {
	s := store(t)
	for name, o := range variants() {
		t.Run(name, func(t *testing.T) {
			l := up(t, s, options(o))
			a, b := place(t, l, lab.PodA), place(t, l, lab.PodB)
			bulk := bytes.Repeat([]byte("mustang "), 1<<17)
			for i, service := range lab.Services() {
				backend := service.Backends[0].String()
				testkit.Echo(t, a, "tcp", backend)
				testkit.Echo(t, a, "udp", backend)
				for _, target := range []string{backend, service.Frontend.String()} {
					for network, payload := range map[string][]byte{"tcp": bulk, "udp": bulk[:1400]} {
						peer, err := testkit.RoundTrip(t, b, network, target, payload)
						if err != nil {
							t.Errorf("%s to %s: %v", network, target, err)
							continue
						}
						if o.Datapath == lab.DatapathEBPF && peer.Addr() != lab.PodBIPs[i] {
							t.Errorf("%s to %s: pod-a sees %s instead of pod-b's address", network, target, peer)
						}
					}
				}
			}
		})
	}
}

// TestNoService proves that what answers on the service is the way that the
// lab was built with: without one there is no answer.
func TestNoService(t *testing.T) {
	l := up(t, store(t), options(lab.Options{Link: "veth", Datapath: lab.DatapathKernel}))
	service := lab.Services()[0]
	testkit.Echo(t, place(t, l, lab.PodA), "tcp", service.Backends[0].String())
	if _, err := testkit.RoundTrip(t, place(t, l, lab.PodB), "tcp", service.Frontend.String(), []byte("x")); err == nil {
		t.Error("the service answers in a lab that has none")
	}
}

func TestHostReachesPods(t *testing.T) {
	s := store(t)
	for _, link := range []string{"veth", "bridge", "macvlan"} {
		t.Run(link, func(t *testing.T) {
			l := up(t, s, options(lab.Options{Link: link}))
			for _, addrs := range [][]netip.Addr{lab.PodAIPs, lab.PodBIPs} {
				for _, addr := range addrs {
					pod := lab.PodA
					if addr == lab.PodBIPs[0] || addr == lab.PodBIPs[1] {
						pod = lab.PodB
					}
					at := testkit.Echo(t, place(t, l, pod), "tcp", netip.AddrPortFrom(addr, 0).String())
					if _, err := testkit.RoundTrip(t, place(t, l, lab.Host), "tcp", at.String(), []byte("x")); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestRootUntouched compares all of the root namespace before and after.
func TestRootUntouched(t *testing.T) {
	s := store(t)
	before := testkit.RootSnapshot(t)
	for _, name := range []string{"veth ebpf", "bridge call-on iptables", "macvlan nftables"} {
		l, err := s.Up(context.Background(), options(variants()[name]))
		if err != nil {
			t.Fatal(err)
		}
		if during := testkit.RootSnapshot(t); during != before {
			t.Errorf("%s changed the root namespace: %s", name, firstDifference(before, during))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := testkit.RootSnapshot(t); after != before {
		t.Errorf("labs left something in the root namespace: %s", firstDifference(before, after))
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%q became %q", x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines became %d", len(x), len(y))
}

func TestOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for name, test := range map[string]struct {
		options lab.Options
		culprit string
	}{
		"name":     {lab.Options{Name: "../x", Topology: "pod-links", Link: "veth"}, "../x"},
		"topology": {lab.Options{Name: "x", Topology: "ring", Link: "veth"}, "ring"},
		"link":     {lab.Options{Name: "x", Topology: "pod-links", Link: "token-ring"}, "token-ring"},
		"datapath": {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", Datapath: "magic"}, "magic"},
		"via":      {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", Datapath: "ebpf", Via: "iptables"}, "iptables"},
		"call":     {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", NetfilterCall: true}, "bridge"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Up(context.Background(), test.options)
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), test.culprit) {
				t.Errorf("error %v, want an OptionError that names %q", err, test.culprit)
			}
			if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}
