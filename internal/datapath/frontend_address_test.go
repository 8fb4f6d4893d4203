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
	if _, _, err := d.Services().Put(t.Context(), service.CLI, s); err != nil {
		t.Fatal(err)
	}
	var conflict *ConflictError
	if _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "its address "+podA6+" is that of a service") {
		t.Errorf("Put: %v, want a ConflictError that names the address", err)
	}
	wantEndpoints(t, d)
	wantLinks(t, d, 0)
	if err := d.Services().Delete(t.Context(), service.CLI, s.Key()); err != nil {
		t.Fatal(err)
	}
	if _, change, err := d.Endpoints().Put(t.Context(), n.attachment(0)); err != nil || change != Added {
		t.Errorf("Put without the service: %v, %v", change, err)
	}
}

// TestPodAtHostAddress refuses a pod that has an address of the host.
func TestPodAtHostAddress(t *testing.T) {
	n, d := routed(t), openTest(t)
	address := []netip.Prefix{netip.MustParsePrefix(podA4 + "/32")}
	if err := rtnl.In(n.host).Configure("lo", rtnl.DeviceConfig{Addresses: address, Up: true}); err != nil {
		t.Fatal(err)
	}
	var conflict *ConflictError
	if _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "its address "+podA4+" is that of the host") {
		t.Errorf("Put: %v, want a ConflictError that names the address", err)
	}
	wantEndpoints(t, d)
	wantLinks(t, d, 0)
}
