// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"mustang/internal/cni/netconf"
	"mustang/internal/ipam"
)

// Versions returns the versions of the CNI specification for configuration lists, the newest first. These are the
// plugin's versions except 0.3.0, which lacks lists.
func Versions() []string { return []string{"1.1.0", "1.0.0", "0.4.0", "0.3.1"} }

// DefaultVersion is the newest version that the runtimes of Debian 12 support.
const DefaultVersion = "1.0.0"

// Network holds the values of a network configuration, netconf.Config. Zero fields select the plugin's defaults.
type Network struct {
	CNIVersion    string         `json:"-"` // one of [Versions]
	Name          string         `json:"-"`
	Link          string         `json:"link"`
	Parent        string         `json:"parent,omitempty"`
	Bridge        string         `json:"bridge,omitempty"`
	MTU           int            `json:"mtu,omitempty"`
	Connections   uint32         `json:"connections,omitempty"`
	Services      string         `json:"services,omitempty"`
	AwaitsAgent   bool           `json:"-"` // ADD waits for the policies of the node's agent: netconf.PoliciesAgent
	Masquerade    bool           `json:"masquerade,omitempty"`
	HostAddresses []netip.Addr   `json:"hostAddresses,omitempty"`
	Subnets       []netip.Prefix `json:"-"` // of pods, one for each family
	Gateways      []netip.Addr   `json:"-"` // of the subnets, at most one for each family
}

type plugin struct {
	Type string `json:"type"`
	Network
	Policies     string          `json:"policies,omitempty"`
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         struct {
		Type   string          `json:"type"`
		Ranges []ipam.RangeSet `json:"ranges"`
	} `json:"ipam"`
}

// Conflist returns the configuration list of the network. It returns the plugin's error if it would reject the list.
func (n Network) Conflist() ([]byte, error) {
	if !slices.Contains(Versions(), n.CNIVersion) {
		return nil, fmt.Errorf("cniVersion: want one of %[2]s, got %[1]q", n.CNIVersion, strings.Join(Versions(), ", "))
	}
	if err := utils.ValidateNetworkName(n.Name); err != nil {
		return nil, fmt.Errorf(
			"name: invalid network name %q: want letters, digits, dots, dashes and underscores, a letter or digit first", n.Name)
	}
	p := plugin{
		Type: netconf.PluginType, Network: n,
		Capabilities: map[string]bool{"aliases": true, "bandwidth": true, "ips": true, "mac": true, "portMappings": true},
	}
	if n.AwaitsAgent {
		p.Policies = netconf.PoliciesAgent
	}
	p.IPAM.Type = netconf.IPAMType
	for _, prefix := range n.Subnets {
		p.IPAM.Ranges = append(p.IPAM.Ranges, ipam.RangeSet{{Subnet: prefix}})
	}
	for _, gateway := range n.Gateways {
		if err := n.setGateway(p.IPAM.Ranges, gateway); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []plugin `json:"plugins"`
	}{n.CNIVersion, n.Name, []plugin{p}}, "", "  ")
	if err != nil {
		return nil, err
	}
	config, err := PluginConfig(text)
	if err != nil {
		return nil, err
	}
	if _, err := netconf.Parse(config); err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// setGateway sets the gateway of the subnet of its family: a usable address of the subnet, or for another router beside
// a host also a link-local IPv6 address.
func (n Network) setGateway(sets []ipam.RangeSet, gateway netip.Addr) error {
	same := func(addr netip.Addr) bool { return addr.Is4() == gateway.Is4() }
	at := slices.IndexFunc(sets, func(set ipam.RangeSet) bool { return same(set[0].Subnet.Addr()) })
	if at < 0 {
		return fmt.Errorf("gateway: %v: there is no subnet of its family", gateway)
	}
	r := &sets[at][0]
	router := !gateway.Is4() && gateway.IsLinkLocalUnicast() && slices.ContainsFunc(n.HostAddresses, same)
	switch {
	case r.Gateway.IsValid():
		return fmt.Errorf("gateway: %v: %v already has the gateway %v", gateway, r.Subnet, r.Gateway)
	case !router && !ipam.Usable(r.Subnet, gateway):
		return fmt.Errorf("gateway: %v is not an address of %v that a host can have", gateway, r.Subnet)
	}
	r.Gateway = gateway
	return nil
}

// PluginConfig returns the configuration that a runtime passes to the first plugin of a list on standard input.
func PluginConfig(conflist []byte) ([]byte, error) {
	var l struct {
		CNIVersion json.RawMessage              `json:"cniVersion"`
		Name       json.RawMessage              `json:"name"`
		Plugins    []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(conflist, &l); err != nil {
		return nil, err
	}
	if len(l.Plugins) == 0 || l.Plugins[0] == nil {
		return nil, errors.New("the list lacks plugins")
	}
	config := l.Plugins[0]
	config["cniVersion"], config["name"] = l.CNIVersion, l.Name
	return json.Marshal(config)
}

// foreignList returns an error if a configuration is not a list of this project's plugin.
func foreignList(text []byte) error {
	var l struct {
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("not a list of plugins: %w", err)
	}
	if len(l.Plugins) == 0 {
		return errors.New("it lists no plugins")
	}
	for _, p := range l.Plugins {
		if p.Type != netconf.PluginType {
			return fmt.Errorf("contains plugin %q", p.Type)
		}
	}
	return nil
}
