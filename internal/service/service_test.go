// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
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
		{"protocol", service(133, "10.96.0.1:80", "10.1.0.1:80"), "unknown protocol"},
		{"no frontend", service(TCP, "", "10.1.0.1:80"), "no address"},
		{"port 0", service(TCP, "10.96.0.1:0", "10.1.0.1:80"), `"10.96.0.1:0": port 0`},
		{"backend's port 0", service(TCP, "10.96.0.1:80", "10.1.0.1:0"), `backend "10.1.0.1:0": port 0`},
		{"twice", service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.1:80"), `"10.1.0.1:80": duplicate`},
		{"IPv6 behind IPv4", service(TCP, "10.96.0.1:80", "[fd00::1]:80"),
			`backend "[fd00::1]:80": the address family differs`},
		{"IPv4 behind IPv6", service(TCP, "[fd00::1]:80", "10.1.0.1:80"),
			`backend "10.1.0.1:80": the address family differs`},
		{"loopback", service(TCP, "127.0.0.1:80", "10.1.0.1:80"), ""},
		{"loopback behind loopback", service(TCP, "[::1]:80", "[::1]:81"), `backend "[::1]:81": ::1 is a loopback address`},
		{"unspecified", service(TCP, "0.0.0.0:80", "10.1.0.1:80"), "only a node port may have"},
		{"0.0.0.0/8", service(TCP, "0.1.2.3:80", "10.1.0.1:80"), `"0.1.2.3:80": 0.1.2.3 is in 0.0.0.0/8`},
		{"reserved", service(TCP, "240.0.0.1:80", "10.1.0.1:80"), `"240.0.0.1:80": 240.0.0.1 is in 240.0.0.0/4`},
		{"reserved backend", service(TCP, "10.96.0.1:80", "240.0.0.1:80"), `backend "240.0.0.1:80": 240.0.0.1 is in`},
		{"no backends", service(TCP, "10.96.0.1:80"), ""},
		{"sctp", service(SCTP, "10.96.0.1:80", "10.1.0.1:80"), ""},
		{"sctp with another port", service(SCTP, "10.96.0.1:80", "10.1.0.1:81"), "backends at port 81: the port differs"},
		{"sctp on loopback", service(SCTP, "127.0.0.1:80", "10.1.0.1:80"), "no socket translates sctp"},
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

// TestValidateSettings changes one setting of a good service.
func TestValidateSettings(t *testing.T) {
	ranges := func(texts ...string) func(*Service) {
		return func(s *Service) {
			for _, text := range texts {
				s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(text))
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*Service)
		want   string
	}{
		"all": {func(s *Service) {
			s.Choice, s.Affinity, s.OnRemove, s.InternalPolicy = Maglev, 24*time.Hour, Reset, Local
		}, ""},
		"node port": {func(s *Service) { s.NodePort, s.Frontend = true, netip.MustParseAddrPort("0.0.0.0:30000") },
			""},
		"one node address": {func(s *Service) { s.NodePort = true }, ""},
		"health check":     {func(s *Service) { s.External, s.ExternalPolicy, s.HealthCheckPort = true, Local, 30000 }, ""},
		"ranges":           {ranges("10.0.0.0/8", "0.0.0.0/0", "10.0.0.0/9"), ""},
		"choice":           {func(s *Service) { s.Choice = 2 }, "unknown choice 2"},
		"policy":           {func(s *Service) { s.ExternalPolicy = 2 }, "unknown policy 2"},
		"on-remove":        {func(s *Service) { s.OnRemove = 2 }, "unknown on-remove 2"},
		"on-remove of udp": {func(s *Service) { s.Protocol, s.OnRemove = UDP, Reset },
			"on-remove reset ends connections of tcp only, not of udp"},
		"on-remove of sctp": {func(s *Service) { s.Protocol, s.OnRemove = SCTP, Reset }, "not of sctp"},
		"on-remove of any":  {func(s *Service) { s.Protocol, s.OnRemove = Any, Reset }, ""},
		"affinity":          {func(s *Service) { s.Affinity = 25 * time.Hour }, "affinity 25h0m0s"},
		"negative":          {func(s *Service) { s.Affinity = -time.Second }, "affinity -1s"},
		"half a second":     {func(s *Service) { s.Affinity = time.Second / 2 }, "affinity 500ms"},
		"dsr":               {func(s *Service) { s.External, s.DSR = true, IPIP }, ""},
		"dsr inside":        {func(s *Service) { s.DSR = IPIP }, "dsr ipip needs a node port or an external address"},
		"dsr to one address": {func(s *Service) {
			s.External, s.DSR = true, IPIP
			s.Backends = append(s.Backends, Backend{Addr: netip.MustParseAddrPort("10.1.0.1:81"), State: Draining})
		}, `backend "10.1.0.1:81": address used twice`},
		"unknown dsr": {func(s *Service) { s.External, s.DSR = true, 2 }, "unknown dsr 2"},
		"two places":  {func(s *Service) { s.NodePort, s.External = true, true }, "not both"},
		"external on lo": {func(s *Service) { s.External, s.Frontend = true, netip.MustParseAddrPort("127.0.0.1:80") },
			"loopback"},
		"state": {func(s *Service) { s.Backends[0].State = 4 }, `backend "10.1.0.1:80": unknown state 4`},
		"two states": {func(s *Service) {
			s.Backends = append(s.Backends, Backend{Addr: s.Backends[0].Addr,
				State: Draining})
		}, "duplicate"},
		"policy cluster": {func(s *Service) { s.External, s.HealthCheckPort = true, 30000 },
			"health-check port 30000 needs the external policy local"},
		"internal": {func(s *Service) { s.ExternalPolicy, s.HealthCheckPort = Local, 30000 },
			"health-check port 30000 needs a node port"},
		"checks of itself": {func(s *Service) { s.NodePort, s.ExternalPolicy, s.HealthCheckPort = true, Local, 80 },
			"health-check port 80 is the node port itself"},
		"checks beside": {func(s *Service) {
			s.NodePort, s.ExternalPolicy, s.HealthCheckPort, s.Protocol = true, Local, 80,
				UDP
		}, ""},
		"host bits":   {ranges("10.0.0.1/8"), "source range 10.0.0.1/8 has host bits; write 10.0.0.0/8"},
		"family":      {ranges("fd00::/8"), "source range fd00::/8: the address family differs"},
		"range twice": {ranges("10.0.0.0/8", "11.0.0.0/8", "10.0.0.0/8"), "source range 10.0.0.0/8: duplicate"},
		"no range":    {func(s *Service) { s.SourceRanges = make([]netip.Prefix, 1) }, "invalid source range"},
	} {
		s := service(TCP, "10.96.0.1:80", "10.1.0.1:80")
		c.change(&s)
		err := s.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestEqualSeesEachField changes one field after another.
func TestEqualSeesEachField(t *testing.T) {
	one := service(TCP, "10.96.0.1:80", "10.1.0.1:80")
	for i, change := range []func(*Service){
		func(s *Service) { s.Frontend = netip.MustParseAddrPort("10.96.0.2:80") },
		func(s *Service) { s.Protocol = Any },
		func(s *Service) { s.Choice = Maglev },
		func(s *Service) { s.Affinity = time.Hour },
		func(s *Service) { s.InternalPolicy = Local },
		func(s *Service) { s.ExternalPolicy = Local },
		func(s *Service) { s.NodePort = true },
		func(s *Service) { s.External = true },
		func(s *Service) { s.DSR = IPIP },
		func(s *Service) { s.HealthCheckPort = 1 },
		func(s *Service) { s.OnRemove = Reset },
		func(s *Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
		func(s *Service) { s.Backends = []Backend{{Addr: s.Backends[0].Addr, Weight: 2}} },
		func(s *Service) { s.Backends = []Backend{{Addr: s.Backends[0].Addr, Local: true}} },
	} {
		other := one
		if change(&other); one.Equal(other) {
			t.Errorf("change %d made no difference", i)
		}
	}
	same := one
	same.ID, same.Revision, same.Owner = 7, 8, Lab
	same.Backends = []Backend{{Addr: one.Backends[0].Addr, Weight: 1}}
	testkit.Check(t, one.Equal(same), "%+v and %+v differ", one, same)
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
	testkit.Check(t, reflect.DeepEqual(got, want), "Diff = %+v, want %+v", got, want)
	affine := one
	affine.Affinity = time.Hour
	got = Diff([]Service{one}, []Service{affine})
	testkit.Check(t, len(got.Update) == 1, "Diff with another affinity = %+v", got)
}

func TestValidateSet(t *testing.T) {
	tcp := service(TCP, "10.96.0.1:80", "10.1.0.1:80")
	udp := service(UDP, "10.96.0.1:80", "10.1.0.1:80")
	sctp := service(SCTP, "10.96.0.1:80", "10.1.0.1:80")
	both := service(Any, "10.96.0.1:80", "10.1.0.1:80")
	other := service(Any, "10.96.0.1:81", "10.1.0.1:80")
	checked := service(TCP, "10.96.0.1:82", "10.1.0.1:80")
	checked.External, checked.ExternalPolicy, checked.HealthCheckPort = true, Local, 30000
	nodePort := service(TCP, "0.0.0.0:30000", "10.1.0.1:80")
	nodePort.NodePort = true
	nodePort6, datagrams, self := service(Any, "[::]:30000", "[fd00::1]:80"), nodePort, nodePort
	nodePort6.NodePort, datagrams.Protocol = true, UDP
	self.ExternalPolicy, self.HealthCheckPort = Local, 30000
	for _, c := range []struct {
		name string
		set  []Service
		want string
	}{
		{"each protocol", []Service{tcp, udp, sctp, other}, ""},
		{"any beside sctp", []Service{sctp, both}, ""},
		{"sctp twice", []Service{sctp, both, sctp}, "10.96.0.1:80/sctp: duplicate frontend"},
		{"one protocol twice", []Service{tcp, other, tcp}, "10.96.0.1:80/tcp: duplicate frontend"},
		{"any after one", []Service{tcp, both}, "10.96.0.1:80/any: duplicate frontend"},
		{"one after any", []Service{both, udp}, "10.96.0.1:80/udp: duplicate frontend"},
		{"one after both", []Service{udp, tcp, udp}, "10.96.0.1:80/udp: duplicate frontend"},
		{"invalid", []Service{{}}, "no address"},
		{"a node port takes a health-check port", []Service{checked, nodePort},
			"service 10.96.0.1:82/tcp: health-check port 30000 is the node port of service 0.0.0.0:30000/tcp"},
		{"in IPv6", []Service{nodePort6, checked}, "is the node port of service [::]:30000/any"},
		{"of udp", []Service{checked, datagrams}, ""},
		{"its own", []Service{self}, "health-check port 30000 is the node port itself"},
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
		"10.1.0.1:80,local":                    {Addr: addr, Local: true},
		"10.1.0.1:80,draining,weight=2,local":  {Addr: addr, State: Draining, Weight: 2, Local: true},
	} {
		var got Backend
		err := got.UnmarshalText([]byte(text))
		testkit.Check(t, err == nil && got == b && b.String() == text, "%q = %+v, %v; %+v = %q", text, got, err, b, b)
	}
	for _, text := range []string{"", "10.1.0.1", "10.1.0.1:80,", "10.1.0.1:80,gone", "10.1.0.1:80,weight=65536",
		"10.1.0.1:080", "10.1.0.1:80,weight=0", "10.1.0.1:80,weight=03", "10.1.0.1:80,active,draining",
		"10.1.0.1:80,weight=1,weight=2",
		"10.1.0.1:80,local,local"} {
		err := new(Backend).UnmarshalText([]byte(text))
		testkit.Check(t, err != nil, "%q: no error", text)
	}
}

// TestLocalServing chooses of the backends on this node as KEP-1669 has it.
func TestLocalServing(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"1,local 2":                           "1,local",
		"1 2,local 3,weight=2,local":          "2,local 3,weight=2,local",
		"1 2,terminating 3,terminating,local": "3,terminating,local",
		"1,local 2,terminating,local":         "1,local",
		"1,terminating 2,terminating,local 3,draining,local":   "2,terminating,local",
		"1 2,draining,local 3,quarantined,local 4,terminating": "",
	} {
		var s Service
		for _, field := range strings.Fields(text) {
			var b Backend
			testkit.Succeed(t, b.UnmarshalText([]byte("10.1.0.1:"+field)))
			s.Backends = append(s.Backends, b)
		}
		s = s.Sorted()
		first, local := s.LocalServing()
		var got []string
		for i, b := range local {
			testkit.Check(t, s.Backends[first+i] == b, "%q: backend %d is %v, want %v", text, first+i, s.Backends[first+i], b)
			got = append(got, strings.TrimPrefix(b.String(), "10.1.0.1:"))
		}
		testkit.Check(t, strings.Join(got, " ") == want, "%q: %q serve, want %q", text, got, want)
	}
}

func TestSameBackends(t *testing.T) {
	one := service(TCP, "10.96.0.1:80", "10.1.0.1:80", "10.1.0.2:80")
	testkit.Check(t, one.SameBackends(service(TCP, "10.96.0.1:80", "10.1.0.2:80", "10.1.0.1:80")),
		"the order made a difference")
	testkit.Check(t, !one.SameBackends(service(TCP, "10.96.0.1:80", "10.1.0.2:80")),
		"a missing backend made no difference")
}
