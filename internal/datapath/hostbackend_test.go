// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestHostBackend has services whose backend is a process of the host, at its own address, and of pods that call their own
// service: pods call both, in each link mode.
func TestHostBackend(t *testing.T) {
	onPods(t, "", func(t *testing.T, n network, d *Datapath) {
		for _, f := range families() {
			callHostBackend(t, d, hostBackend{n.host, n.pods[1], f.gateway, f.service, f.client})
		}
		wantNoDrops(t, d)
	})
	t.Run("uplink", func(t *testing.T) {
		n, d := routed(t), openTest(t)
		far := n.wire(t)
		n.attachBoth(t, d)
		must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
		for _, ends := range [][4]string{
			{gateway4, near4, far4}, {near4, near4, far4}, {gateway6, near6, far6}, {near6, near6, far6},
		} {
			callHostBackend(t, d, hostBackend{n.host, far, ends[0], ends[1], ends[2]})
		}
		wantNoDrops(t, d)
	})
}

// hostBackend is a backend on the host, and a client of its service.
type hostBackend struct {
	host, client              *netns.Namespace
	backend, service, address string // the last is the client's
}

func callHostBackend(t *testing.T, d *Datapath, b hostBackend) {
	t.Helper()
	for _, p := range []service.Protocol{service.TCP, service.UDP} {
		s := service.Service{Frontend: netip.MustParseAddrPort(net.JoinHostPort(b.service, servicePort)), Protocol: p,
			Backends: service.Backends(testkit.Echo(t, b.host, p.String(), net.JoinHostPort(b.backend, "0")))}
		must2(d.Services().Put(t.Context(), service.CLI, s))(t)
		for _, size := range []int{1, 8000} { // UDP's last is in fragments
			before := counts(t, d)
			peer, err := testkit.RoundTrip(t, b.client, p.String(), s.Frontend.String(), bytes.Repeat([]byte("h"), size))
			diff := delta(t, d, before)
			if err != nil || peer.Addr().String() != b.address {
				t.Errorf("%s to %s at %s, %d bytes: the backend saw %s, want %s; %v (counted %v)", p, s.Frontend, b.backend, size, peer, b.address, err, diff)
			}
			if diff["new_connection"] != 1 || diff["forward"] == 0 || diff["reverse"] == 0 {
				t.Errorf("%s to %s at %s, %d bytes: counted %v", p, s.Frontend, b.backend, size, diff)
			}
		}
		succeed(t, d.Services().Delete(t.Context(), service.CLI, s.Key()))
	}
}

// TestSocketHostBackend has a process of the host call a service whose backend is another one.
func TestSocketHostBackend(t *testing.T) {
	s := newStage(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	host := place{s.host, s.cgroup}
	for _, ends := range [][2]string{{service4, gateway4}, {service6, gateway6}, {"127.0.0.1", gateway4}} {
		frontend := netip.MustParseAddrPort(net.JoinHostPort(ends[0], servicePort))
		backend := testkit.Echo(t, s.host, "udp", net.JoinHostPort(ends[1], "0"))
		s.serve(frontend.String(), backend)
		client := host.open(t, frontend.Addr().Is6(), unix.SOCK_DGRAM)
		client.mustConnect(frontend)
		if _, err := unix.Write(client.fd, []byte("host")); err != nil {
			t.Error(err)
		}
		got := make([]byte, 16)
		if m, err := unix.Read(client.fd, got); err != nil || string(got[:m]) != "host" {
			t.Errorf("%s at %s: %q, %v", frontend, backend, got[:m], err)
		}
	}
}
