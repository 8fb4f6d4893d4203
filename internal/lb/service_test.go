// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func service(p Protocol, frontend string, backends ...string) Service {
	var s Service
	s.Protocol = p
	if frontend != "" {
		s.Frontend = netip.MustParseAddrPort(frontend)
	}
	for _, backend := range backends {
		s.Backends = append(s.Backends, netip.MustParseAddrPort(backend))
	}
	return s
}

func TestValidate(t *testing.T) {
	var many []string
	for i := range MaxBackends + 1 {
		many = append(many, fmt.Sprintf("10.1.%d.%d:80", i/256, i%256))
	}
	for _, c := range []struct {
		name    string
		service Service
		want    string
	}{
		{"good", service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.1:81", "10.1.0.2:80"), ""},
		{"good in IPv6", service(Any, "[fd00::1]:80", "[fd00::2]:80"), ""},
		{"as many as can be", service(Any, "10.96.0.1:80", many[:MaxBackends]...), ""},
		{"too many", service(Any, "10.96.0.1:80", many...), "4097 backends, at most 4096"},
		{"protocol", service(132, "10.96.0.1:80", "10.1.0.1:80"), "unknown protocol"},
		{"no frontend", service(TCP, "", "10.1.0.1:80"), "no address"},
		{"no backend", service(TCP, "10.96.0.1:80"), "no backend"},
		{"port 0", service(TCP, "10.96.0.1:0", "10.1.0.1:80"), `"10.96.0.1:0": port 0`},
		{"backend's port 0", service(TCP, "10.96.0.1:80", "10.1.0.1:0"), `backend "10.1.0.1:0": port 0`},
		{"twice", service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.1:80"), `"10.1.0.1:80": given twice`},
		{"IPv6 behind IPv4", service(TCP, "10.96.0.1:80", "[fd00::1]:80"), `backend "[fd00::1]:80": not of the family`},
		{"IPv4 behind IPv6", service(TCP, "[fd00::1]:80", "10.1.0.1:80"), `backend "10.1.0.1:80": not of the family`},
		{"loopback", service(TCP, "127.0.0.1:80", "10.1.0.1:80"), ""},
		{"loopback behind loopback", service(TCP, "[::1]:80", "[::1]:81"), `backend "[::1]:81": ::1 is a loopback address`},
		{"itself", service(TCP, "10.96.0.1:80", "10.96.0.1:80"), "is the service itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.service.Validate()
			if c.want == "" && err == nil {
				return
			}
			if err == nil || c.want == "" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestRows(t *testing.T) {
	s := service(Any, "10.96.0.1:80", "10.1.0.2:80", "10.1.0.1:80")
	s.ID = 7
	rows := Rows(s)
	addr := [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 96, 15: 1}
	backends := []netip.AddrPort{s.Backends[1], s.Backends[0]}
	want := []Row{
		{ID: 7, Addr: addr, Port: 80, Protocol: TCP, Backends: backends},
		{ID: 7, Addr: addr, Port: 80, Protocol: UDP, Backends: backends},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("Rows = %+v, want %+v", rows, want)
	}
	if s.Backends[0] != netip.MustParseAddrPort("10.1.0.2:80") {
		t.Error("Rows changed its argument")
	}
}

func TestJoin(t *testing.T) {
	services := []Service{
		service(Any, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.2:80"),
		service(TCP, "[fd00::1]:80", "[fd00::2]:80"),
		service(UDP, "[fd00::1]:80", "[fd00::3]:53"),
	}
	var rows []Row
	for i := range services {
		services[i].ID = uint32(i + 1)
		rows = append(rows, Rows(services[i])...)
	}
	slices.Reverse(rows) // a table has no order
	if got := Join(rows); !reflect.DeepEqual(got, services) {
		t.Errorf("Join = %v, want %v", got, services)
	}
	if got := Join(nil); len(got) != 0 {
		t.Errorf("Join of nothing = %v", got)
	}
}

func TestSameBackends(t *testing.T) {
	one := service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.2:80")
	if !one.SameBackends(service(TCP, "10.96.0.1:80", "10.1.0.2:80", "10.1.0.1:80")) {
		t.Error("the order made a difference")
	}
	if one.SameBackends(service(TCP, "10.96.0.1:80", "10.1.0.2:80")) {
		t.Error("a missing backend made no difference")
	}
}
