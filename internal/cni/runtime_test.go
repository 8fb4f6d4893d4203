// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net/netip"
	"reflect"
	"testing"

	"mustang/internal/lb"
)

// TestParseContainerd reads what containerd 1.6 passes, as it writes it.
func TestParseContainerd(t *testing.T) {
	c, err := Parse([]byte(withIPAM(`, "runtimeConfig":{
		"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"192.0.2.1"}],
		"bandwidth":{"IngressRate":1000,"IngressBurst":2000,"EgressRate":3000,"EgressBurst":4000}}`)))
	if err != nil {
		t.Fatal(err)
	}
	want := Runtime{
		Ports:     []Port{{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 8080, ContainerPort: 80, Protocol: lb.TCP}},
		Bandwidth: Bandwidth{1000, 2000, 3000, 4000},
	}
	if !reflect.DeepEqual(c.Runtime, want) {
		t.Errorf("got  %+v\nwant %+v", c.Runtime, want)
	}
	// Twice is not read either way.
	if _, err := Parse([]byte(withIPAM(`, "runtimeConfig":{"bandwidth":{"ingressRate":1,"IngressRate":2}}`))); err == nil {
		t.Error("two rates are taken")
	}
}
