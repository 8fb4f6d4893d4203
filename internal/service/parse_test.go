// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func parseBackend(s string) (netip.AddrPort, error) {
	var b Backend
	err := b.UnmarshalText([]byte(s))
	return b.Addr, err
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string // part of the error; empty if there is none
	}{
		{"10.96.0.100:5201", ""},
		{"[fd00:96::100]:5201", ""},
		{"10.96.0.100:65535", ""},
		{"", "empty"},
		{"10.96.0.100", "no port"},
		{"10.96.0.100:", "no port after the colon"},
		{"10.96.0.100:0", "port 0 is not in 1..65535"},
		{"10.96.0.100:70000", "port 70000 is not in 1..65535"},
		{"10.96.0.100:99999999999999999999", "is not in 1..65535"},
		{"10.96.0.100:-1", `invalid port "-1"`},
		{"10.96.0.100:http", `invalid port "http"`},
		{"10.96.0.256:80", `invalid IP address "10.96.0.256"`},
		{"example.org:80", `invalid IP address "example.org"`},
		{":80", `invalid IP address ""`},
		{"fd00::1:80", "needs brackets"},
		{"fd00::1", "needs brackets"},
		{"[fd00::1]", "no port"},
		{"[fd00::1]80", "no port"},
		{"[fd00::1:80", "no closing bracket"},
		{"[10.96.0.1]:80", "brackets around the IPv4 address"},
		{"[fe80::1%eth0]:80", `zone "eth0"`},
		{"[fe80::1]:80", "link-local"},
		{"[::ffff:10.96.0.1]:80", "write the IPv4 address as 10.96.0.1"},
		{"0.1.2.3:80", "0.1.2.3 is in 0.0.0.0/8"},
		{"240.0.0.1:80", "240.0.0.1 is in 240.0.0.0/4"},
		{"[::10.96.0.1]:80", "::a60:1 is in ::/96"},
		{"10.96.0.1:080", `port "080" has a leading zero`},
		{"10.96.0.1:00", "port 00 is not in"},
		{"224.0.0.1:80", "multicast"},
		{"[ff02::1]:80", "multicast"},
		{"255.255.255.255:80", "broadcast"},
	} {
		for what, parse := range map[string]func(string) (netip.AddrPort, error){"service": ParseFrontend,
			"backend": parseBackend} {
			got, err := parse(c.in)
			if c.want == "" {
				testkit.Check(t, err == nil && got.String() == c.in, "%s %q = %v, %v", what, c.in, got, err)
				continue
			}
			if err == nil {
				t.Errorf("%s %q: no error, want %q", what, c.in, c.want)
				continue
			}
			if m := err.Error(); !strings.Contains(m, c.want) || !strings.HasPrefix(m, what) || strings.Contains(m, "\n") {
				t.Errorf("%s %q: error %q, want %q", what, c.in, m, c.want)
			}
		}
	}
}

// TestLoopback is allowed for services, but not for backends.
func TestLoopback(t *testing.T) {
	for _, s := range []string{"127.0.0.1:80", "127.1.2.3:80", "[::1]:80"} {
		_, err := ParseFrontend(s)
		testkit.Check(t, err == nil, "%v", err)
		_, err = parseBackend(s)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), "loopback"), "backend %s: error %v", s, err)
	}
}

// TestUnspecified is allowed only for services: it stands for all addresses of a node.
func TestUnspecified(t *testing.T) {
	for _, s := range []string{"0.0.0.0:80", "[::]:80"} {
		_, err := ParseFrontend(s)
		testkit.Check(t, err == nil, "%v", err)
		_, err = parseBackend(s)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), "unspecified"), "backend %s: error %v", s, err)
	}
	_, err := ParseFrontend("0.0.0.0:0")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "port 0"), "port 0: error %v", err)
}

// FuzzParse parses the texts of frontends and backends. Accepted texts can be written and read again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10.96.0.100:5201", "[fd00:96::100]:5201", "[fe80::1%eth0]:80", "[]:1", "[", "]:", ":::",
		"1.2.3.4:00080",
		"10.1.0.1:80,draining,weight=3", "10.1.0.1:80,local,terminating", "10.1.0.1:80,weight=65536", "0.0.0.0:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ap, err := ParseFrontend(s); err != nil && ap.IsValid() || err == nil && validateFrontend(ap) != nil {
			t.Errorf("%q: %v, %v", s, ap, err)
		}
		var b, again Backend
		if err := b.UnmarshalText([]byte(s)); err != nil {
			return
		}
		testkit.Check(t, b.Addr.Port() != 0 && b.Addr.IsValid() && !b.Addr.Addr().Is4In6() && b.Addr.Addr().Zone() == "",
			"%q was taken as %v", s, b)
		err := again.UnmarshalText([]byte(b.String()))
		testkit.Check(t, err == nil && again.equal(b), "%q was read as %v, which reads as %v, %v", s, b, again, err)
	})
}

func TestParseProtocol(t *testing.T) {
	for in, want := range map[string]Protocol{"tcp": TCP, "UDP": UDP, "Any": Any, "SCTP": SCTP} {
		got, err := ParseProtocol(in)
		testkit.Check(t, err == nil && got == want, "ParseProtocol(%q) = %v, %v", in, got, err)
		got, err = ParseProtocol(want.String())
		testkit.Check(t, err == nil && got == want, "ParseProtocol(%q) = %v, %v", want, got, err)
	}
	for _, in := range []string{"", "icmp", "6"} {
		_, err := ParseProtocol(in)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), in), "ParseProtocol(%q): error %v", in, err)
	}
	got := Protocol(133).String()
	testkit.Check(t, got == "protocol-133", "String() = %q", got)
}
