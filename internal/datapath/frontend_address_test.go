// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// TestPodAtFrontend refuses a pod that has the address of a service, and takes it when the service is gone.
func TestPodAtFrontend(t *testing.T) {
	n, d := routed(t), openTest(t)
	s := service.Service{Frontend: netip.MustParseAddrPort("[" + podA6 + "]:80"), Protocol: service.TCP}
	must2(d.Services().Put(t.Context(), service.CLI, s))(t)
	_, _, err := d.Endpoints().Put(t.Context(), n.attachment(0))
	wantConflict(t, err, "its address "+podA6+" is that of a service")
	wantEndpoints(t, d)
	wantLinks(t, d, 0)
	succeed(t, d.Services().Delete(t.Context(), service.CLI, s.Key()))
	if _, change, err := d.Endpoints().Put(t.Context(), n.attachment(0)); err != nil || change != Added {
		t.Errorf("Put without the service: %v, %v", change, err)
	}
}

// TestPodAtHostAddress refuses a pod that has an address of the host.
func TestPodAtHostAddress(t *testing.T) {
	n, d := routed(t), openTest(t)
	address := []netip.Prefix{netip.MustParsePrefix(podA4 + "/32")}
	succeed(t, rtnl.In(n.host).Configure("lo", rtnl.DeviceConfig{Addresses: address, Up: true}))
	_, _, err := d.Endpoints().Put(t.Context(), n.attachment(0))
	wantConflict(t, err, "its address "+podA4+" is that of the host")
	wantEndpoints(t, d)
	wantLinks(t, d, 0)
}

// TestFrontendAtPod refuses a service that has the address of a pod, by Put and in a set.
func TestFrontendAtPod(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	for _, owner := range []service.Owner{service.CLI, service.CNI} {
		s := service.Service{Frontend: netip.MustParseAddrPort("[" + podA6 + "]:80"), Protocol: service.TCP}
		_, _, err := d.Services().Put(t.Context(), owner, s)
		wantConflict(t, err, "the address is that of endpoint")
		_, err = d.Services().Apply(t.Context(), owner, []service.Service{s})
		wantConflict(t, err, "the address is that of endpoint")
	}
	if all, err := d.Services().List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("services %v, %v; want none", all, err)
	}
}

// wantConflict wants a ConflictError that has the words.
func wantConflict(t *testing.T, err error, words string) {
	t.Helper()
	var conflict *ConflictError
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want a ConflictError with %q", err, words)
	}
}

// TestBackendThatIsService has a service call another one: calls are translated once.
func TestBackendThatIsService(t *testing.T) {
	d := openTest(t)
	other := netip.MustParseAddrPort("10.96.0.2:80")
	put := func(s service.Service) error {
		_, _, err := d.Services().Put(t.Context(), service.CLI, s)
		return err
	}
	succeed(t, put(service.Service{Frontend: other, Protocol: service.TCP}))
	for _, protocol := range []service.Protocol{service.Any, service.TCP, service.UDP} {
		s := service.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: protocol, Backends: service.Backends(other)}
		if err := put(s); protocol != service.UDP {
			wantConflict(t, err, "10.96.0.2:80 is a service")
		} else if err != nil {
			t.Error(err)
		}
	}
}
