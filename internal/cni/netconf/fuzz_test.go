// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// FuzzParse parses configurations. Parse does not panic, its errors have a code and name
// something on one line, and what it accepts has valid values within their limits.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[1]`, withIPAM(``), withIPAM(`,"link":"veth","services":"both","masquerade":true,"mtu":1400`),
		withHost(`"10.88.0.2"`, ``), withHost(`"10.88.0.2","fd00::2"`, `,"mtu":-1`),
		withRoutes(`{"dst":"10.9.0.0/16","gw":"10.88.0.9"}`, `,"link":"bridge"`), withRoutes(`{"dst":"0.0.0.0/0"}`, `,"defaultRoute":false`),
		withIPAM(`,"runtimeConfig":{"ips":["10.88.0.7/16"],"mac":"02:00:00:00:00:07","portMappings":[{"HostPort":80,"containerPort":80}],"bandwidth":{"IngressRate":1}}`),
		withIPAM(`,"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/16"}]}`),
		`{"name":"pods","chained":true,"services":"off","runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2}]}}`,
		`{"name":"pods","link":"macvlan","hostAddresses":["10.0.0.2"],"ipam":{"type":"dhcp","daemonSocketPath":"/x"}}`,
		`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"fd00::/64","rangeStart":"fd00::9","exclude":["fd00::/65","fd00::8000:0:0:0/65"]}]]}}`,
		`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"::/0","gateway":"fe80::1%x"}],[{"subnet":"0.0.0.0/0"}]]}}`,
		`{"name":"../x","Name":"ok"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = ParseHead(data)
		c, err := Parse(data)
		if c.Name != "" && utils.ValidateNetworkName(c.Name) != nil {
			t.Fatalf("%q: name %q, %v", data, c.Name, err)
		}
		if err != nil {
			var coded *types.Error
			if !errors.As(err, &coded) || coded.Msg == "" {
				t.Fatalf("%q: error %v", data, err)
			}
			return
		}
		if c.MTU < 0 || c.MTU > 65535 || len(c.IPAM.Sets) > 2 || len(c.IPAM.Routes) > maxRoutes || len(c.HostAddresses) > 2 {
			t.Fatalf("%q: accepted %+v", data, c)
		}
		for _, p := range c.Runtime.Ports {
			if p.HostPort == 0 || p.ContainerPort == 0 {
				t.Fatalf("%q: accepted %+v", data, p)
			}
		}
		for _, set := range c.IPAM.Sets {
			_, _, _ = c.HostPrefixes([]PodAddress{{set[0].Subnet, gatewayOf(set[0])}})
		}
		_, _ = c.PreviousResult()
		if !json.Valid(c.Raw) {
			t.Fatalf("%q: accepted", data)
		}
	})
}
