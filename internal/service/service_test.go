// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func service(p Protocol, frontend string, backends ...string) Service {
	var s Service
	s.Protocol = p
	if frontend != "" {
		s.Frontend = netip.MustParseAddrPort(frontend)
	}
	for _, backend := range backends {
		s.Backends = append(s.Backends, Backend{Addr: netip.MustParseAddrPort(backend)})
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
		{"too many", service(Any, "10.96.0.1:80", many...), "4097 backends exceed the maximum of 4096"},
		{"protocol", service(132, "10.96.0.1:80", "10.1.0.1:80"), "unknown protocol"},
		{"no frontend", service(TCP, "", "10.1.0.1:80"), "no address"},
		{"port 0", service(TCP, "10.96.0.1:0", "10.1.0.1:80"), `"10.96.0.1:0": port 0`},
		{"backend's port 0", service(TCP, "10.96.0.1:80", "10.1.0.1:0"), `backend "10.1.0.1:0": port 0`},
		{"twice", service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.1:80"), `"10.1.0.1:80": duplicate`},
		{"IPv6 behind IPv4", service(TCP, "10.96.0.1:80", "[fd00::1]:80"), `backend "[fd00::1]:80": the address family differs`},
		{"IPv4 behind IPv6", service(TCP, "[fd00::1]:80", "10.1.0.1:80"), `backend "10.1.0.1:80": the address family differs`},
		{"loopback", service(TCP, "127.0.0.1:80", "10.1.0.1:80"), ""},
		{"loopback behind loopback", service(TCP, "[::1]:80", "[::1]:81"), `backend "[::1]:81": ::1 is a loopback address`},
		{"itself", service(TCP, "10.96.0.1:80", "10.96.0.1:80"), "own frontend"},
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

// TestDiff compares sets of services by key, settings and backends.
func TestDiff(t *testing.T) {
	one := service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.2:80")
	one.ID, one.Revision, one.Owner = 1, 7, Agent
	two := service(UDP, "10.96.0.1:80", "10.1.0.1:80")
	gone := service(Any, "[fd00::1]:80", "[fd00::2]:80")
	reordered := service(TCP, "10.96.0.1:80", "10.1.0.2:80", "10.1.0.1:80")
	draining := service(UDP, "10.96.0.1:80", "10.1.0.1:80")
	draining.Backends[0].State = Draining
	other := service(TCP, "[fd00::1]:80", "[fd00::2]:80")
	got := Diff([]Service{one, two, gone}, []Service{other, draining, reordered})
	want := Changes{
		Add: []Service{other}, Update: []Update{{two, draining}}, Delete: []Service{gone}, Unchanged: 1,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Diff = %+v, want %+v", got, want)
	}
	affine := one
	affine.Affinity = time.Hour
	if got := Diff([]Service{one}, []Service{affine}); len(got.Update) != 1 {
		t.Errorf("Diff with another affinity = %+v", got)
	}
}

func TestValidateSet(t *testing.T) {
	tcp := service(TCP, "10.96.0.1:80", "10.1.0.1:80")
	udp := service(UDP, "10.96.0.1:80", "10.1.0.1:80")
	both := service(Any, "10.96.0.1:80", "10.1.0.1:80")
	other := service(Any, "10.96.0.1:81", "10.1.0.1:80")
	for _, c := range []struct {
		name string
		set  []Service
		want string
	}{
		{"each protocol", []Service{tcp, udp, other}, ""},
		{"one protocol twice", []Service{tcp, other, tcp}, "10.96.0.1:80/tcp: duplicate frontend"},
		{"any after one", []Service{tcp, both}, "10.96.0.1:80/any: duplicate frontend"},
		{"one after any", []Service{both, udp}, "10.96.0.1:80/udp: duplicate frontend"},
		{"one after both", []Service{udp, tcp, udp}, "10.96.0.1:80/udp: duplicate frontend"},
		{"invalid", []Service{{}}, "no address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := ValidateSet(c.set)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestBackendText holds for the files that backends are stored in.
func TestBackendText(t *testing.T) {
	addr := netip.MustParseAddrPort("10.1.0.1:80")
	for text, b := range map[string]Backend{
		"10.1.0.1:80":                          {Addr: addr},
		"10.1.0.1:80,draining":                 {Addr: addr, State: Draining},
		"10.1.0.1:80,weight=3":                 {Addr: addr, Weight: 3},
		"10.1.0.1:80,quarantined,weight=65535": {Addr: addr, State: Quarantined, Weight: 65535},
	} {
		var got Backend
		if err := got.UnmarshalText([]byte(text)); err != nil || got != b || b.String() != text {
			t.Errorf("%q = %+v, %v; %+v = %q", text, got, err, b, b)
		}
	}
	for _, text := range []string{"", "10.1.0.1", "10.1.0.1:80,", "10.1.0.1:80,gone", "10.1.0.1:80,weight=65536"} {
		if err := new(Backend).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
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
