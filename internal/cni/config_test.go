// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/ipam"
	"mustang/internal/lb"
)

// withIPAM is a network configuration with addresses, and more keys.
func withIPAM(more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"mustang-cni",
		"ipam":{"type":"mustang","ranges":[[{"subnet":"10.88.0.0/16"}]]}%s}`, more)
}

// routed is one with addresses of the host, so that another is the router.
func routed(hosts, more string) string {
	return withIPAM(`, "link":"macvlan", "hostAddresses":[` + hosts + `]` + more)
}

// TestHostAddresses keeps the host's addresses from being given out.
func TestHostAddresses(t *testing.T) {
	c, err := Parse([]byte(routed(`"10.88.0.2"`, "")))
	if err != nil {
		t.Fatal(err)
	}
	want := ipam.Range{Subnet: netip.MustParsePrefix("10.88.0.0/16"), Exclude: []netip.Prefix{netip.MustParsePrefix("10.88.0.2/32")}}
	if !reflect.DeepEqual(c.IPAM.Sets, []ipam.RangeSet{{want}}) || len(c.HostAddresses) != 1 {
		t.Errorf("got %+v", c)
	}
}

// TestParse reads each key.
func TestParse(t *testing.T) {
	c, err := Parse([]byte(withIPAM(`, "link":"macvlan", "parent":"eth1", "bridge":"br0", "ovsdb":"/run/db.sock", "mtu":1400,
		"services":"tc", "masquerade":true, "dns":{"nameservers":["10.96.0.10"]}, "capabilities":{"ips":true},
		"prevResult":null, "args":{"any":1}, "cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],
		"runtimeConfig":{"ips":["10.88.0.7/16","fd00::7"], "mac":"02:00:00:00:00:07", "aliases":{"pods":["a"]},
			"bandwidth":{"ingressRate":1000,"ingressBurst":2000,"egressRate":3000,"egressBurst":4000},
			"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},
				{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},
				{"hostPort":1,"containerPort":2,"protocol":"tcp","hostIP":"0.0.0.0"}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	c.raw = nil
	c.IPAM.Sets = nil
	want := Config{
		CNIVersion: "1.1.0", Name: "pods", Link: "macvlan", Parent: "eth1", Bridge: "br0", OVSDB: "/run/db.sock", MTU: 1400,
		Services: ServicesTC, Masquerade: true, IPAM: IPAM{Type: IPAMType}, DNS: types.DNS{Nameservers: []string{"10.96.0.10"}},
		Valid: []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}},
		Runtime: Runtime{
			IPs: []netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("fd00::7")},
			MAC: []byte{2, 0, 0, 0, 0, 7}, Bandwidth: Bandwidth{1000, 2000, 3000, 4000},
			Ports: []Port{
				{HostPort: 8080, ContainerPort: 80, Protocol: lb.TCP},
				{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 53, ContainerPort: 5353, Protocol: lb.UDP},
				{HostPort: 1, ContainerPort: 2, Protocol: lb.TCP},
			},
		},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestParseDefaults reads the least that there can be.
func TestParseDefaults(t *testing.T) {
	c, err := Parse([]byte(withIPAM("")))
	if err != nil {
		t.Fatal(err)
	}
	sets := []ipam.RangeSet{{{Subnet: netip.MustParsePrefix("10.88.0.0/16")}}}
	if c.Link != LinkAuto || c.Services != ServicesSocket || c.OVSDB != DefaultOVSDB || c.Masquerade || !reflect.DeepEqual(c.IPAM.Sets, sets) {
		t.Errorf("got %+v", c)
	}
	if _, err := Parse([]byte(`{"name":"pods","type":"mustang-cni","chained":true}`)); err != nil {
		t.Error(err)
	}
	other := `{"name":"pods","ipam":{"type":"host-local","subnet":"10.0.0.0/8","whatever":[1]}}`
	if c, err := Parse([]byte(other)); err != nil || c.IPAM.Type != "host-local" {
		t.Errorf("%+v, %v", c.IPAM, err)
	}
}

// TestParseErrors gives what must be refused in one line with a code and the
// culprit.
func TestParseErrors(t *testing.T) {
	const invalid, unknown, decoding = types.ErrInvalidNetworkConfig, types.ErrUnsupportedField, types.ErrDecodingFailure
	refuses(t, []parseError{
		{`nonsense`, decoding, "nonsense"},
		{`[1]`, decoding, "[1]"},
		{`null`, decoding, "null"},
		{withIPAM(`, "lnk":"veth"`), unknown, `lnk: "veth"`},
		{withIPAM(`, "link":"tap"`), invalid, `"tap"`},
		{withIPAM(`, "link":5`), invalid, "link: want a string, got 5"},
		{withIPAM(`, "services":"all"`), invalid, `"all"`},
		{withIPAM(`, "mtu":-1`), invalid, "mtu: -1"},
		{withIPAM(`, "mtu":"big"`), invalid, `mtu: want a number of bytes, got "big"`},
		{withIPAM(`, "masquerade":"yes"`), invalid, "masquerade"},
		{withIPAM(`, "parent":"a/b"`), invalid, "parent"},
		{withIPAM(`, "bridge":"a name of a bridge"`), invalid, "bridge"},
		{withIPAM(`, "ovsdb":"db.sock"`), invalid, "ovsdb"},
		{withIPAM(`, "chained":true`), invalid, "ipam"},
		{`{"name":"pods","chained":true,"link":"veth"}`, invalid, "link"},
		{`{"name":"pods","chained":true,"masquerade":true}`, invalid, "masquerade"},
		{`{"name":"pods","chained":true,"services":"off"}`, invalid, "services"},
		{`{"name":"pods"}`, invalid, "ipam.type"},
		{`{"name":"pods","ipam":{"type":"mustang"}}`, invalid, "ipam.ranges"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[]]}}`, invalid, "ipam.ranges[0]"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0"}]]}}`, invalid, "ipam.ranges[0][0].subnet"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8","start":"10.0.0.9"}]]}}`, unknown, "ipam.ranges[0][0].start"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8","rangeStart":"11.0.0.9"}]]}}`, invalid, "11.0.0.9"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"}],[{"subnet":"11.0.0.0/8"}]]}}`, invalid, "second set"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"},{"subnet":"11.0.0.0/8"}]]}}`, invalid, "one subnet"},
		{`{"name":"pods","ipam":{"type":"dhcp"}}`, invalid, "link: by auto"},
		{`{"name":"pods","link":"ipvlan-l2","hostAddresses":["10.88.0.2"],"ipam":{"type":"dhcp"}}`, invalid, "(it does by: bridge, macvlan)"},
		{`{"name":"pods","link":"macvlan","ipam":{"type":"dhcp"}}`, invalid, "hostAddresses: missing"},
		{`{"name":"pods","link":"macvlan","hostAddresses":["fd00::2"],"ipam":{"type":"dhcp"}}`, invalid, "hostAddresses: missing"},
		{withIPAM(`, "link":"veth", "hostAddresses":["10.88.0.2"]`), invalid, "hostAddresses: with link veth"},
		{withIPAM(`, "link":"ipvlan-l3", "hostAddresses":["10.88.0.2"]`), invalid, "hostAddresses: with link ipvlan-l3"},
		{withIPAM(`, "hostAddresses":["10.88.0.2"]`), invalid, "hostAddresses: with link auto"},
		{`{"name":"pods","chained":true,"hostAddresses":["10.88.0.2"]}`, invalid, "hostAddresses: a chained"},
		{routed(`"10.88.0.2"`, `, "masquerade":true`), invalid, "masquerade: with hostAddresses"},
		{routed(``, ``), invalid, "hostAddresses: want"},
		{routed(`"here"`, ``), invalid, `hostAddresses: want an array of addresses, got ["here"]`},
		{routed(`"10.88.0.2/16"`, ``), invalid, "hostAddresses: want"},
		{routed(`""`, ``), invalid, "hostAddresses[0]"},
		{routed(`"224.0.0.1"`, ``), invalid, `hostAddresses[0]: "224.0.0.1"`},
		{routed(`"10.88.0.1"`, ``), invalid, "hostAddresses[0]: 10.88.0.1 is the gateway's"},
		{routed(`"10.88.255.255"`, ``), invalid, "hostAddresses[0]: 10.88.255.255"},
		{routed(`"10.89.0.1"`, ``), invalid, "hostAddresses[0]: 10.89.0.1 is in no subnet"},
		{routed(`"fd00::2"`, ``), invalid, "hostAddresses[0]: fd00::2 is in no subnet"},
		{routed(`"10.88.0.2","10.88.0.3"`, ``), invalid, "hostAddresses[1]: 10.88.0.3 is the second"},
		{`{"name":"pods","link":"macvlan","hostAddresses":["10.0.0.2"],"ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/30"}]]}}`, invalid, "no address is left"},
		{withIPAM(`, "runtimeConfig":{"ips":["here"]}`), invalid, `runtimeConfig.ips[0]: want an address, got "here"`},
		{withIPAM(`, "runtimeConfig":{"mac":"here"}`), invalid, `"here"`},
		{withIPAM(`, "runtimeConfig":{"infinibandGUID":"x"}`), unknown, "runtimeConfig.infinibandGUID"},
		{withIPAM(`, "runtimeConfig":{"bandwidth":{"rate":1}}`), unknown, "runtimeConfig.bandwidth.rate"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":0}]}`), invalid, "portMappings[0].containerPort"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":99999,"containerPort":1}]}`), invalid, "99999"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":1,"protocol":"sctp"}]}`), invalid, "sctp"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":1,"hostIP":"x"}]}`), invalid, "hostIP"},
	})
}

// parseError is a configuration that is refused.
type parseError struct {
	config  string
	code    uint
	culprit string
}

// refuses fails the test unless all are refused so.
func refuses(t *testing.T, rows []parseError) {
	t.Helper()
	for _, test := range rows {
		_, err := Parse([]byte(test.config))
		var coded *types.Error
		if !errors.As(err, &coded) || coded.Code != test.code || !strings.Contains(coded.Msg, test.culprit) || strings.Contains(coded.Msg, "\n") {
			t.Errorf("%s\ngives %v, want code %d and %q", test.config, err, test.code, test.culprit)
		}
	}
}

// TestDeviceName holds the names to what the kernel takes, and to one network.
func TestDeviceName(t *testing.T) {
	seen := map[string]bool{}
	for _, network := range []string{"pods", "other"} {
		for _, id := range []string{"a", "b"} {
			for _, ifname := range []string{"eth0", "eth1"} {
				name := deviceName(network, Owner{ContainerID: id, IfName: ifname})
				if len(name) != 15 || seen[name] || !strings.HasPrefix(name, devicePrefix(network)) {
					t.Errorf("%s/%s/%s: %q", network, id, ifname, name)
				}
				seen[name] = true
			}
		}
	}
}
