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

	"mustang/internal/cni"
	"mustang/internal/podlink"
)

// Versions are those of the CNI spec that a list can be written for, the newest
// first: the plugin's, but for 0.3.0, which knows no lists.
func Versions() []string { return []string{"1.1.0", "1.0.0", "0.4.0", "0.3.1"} }

// Network is what a network's configuration is made of. The zero value of a field
// leaves the choice to the plugin.
type Network struct {
	// CNIVersion is one of [Versions], Name the network's name.
	CNIVersion, Name string
	// Link is a link mode, or cni.LinkAuto.
	Link string
	// Parent and Bridge are names of devices.
	Parent, Bridge string
	// MTU of the pods' devices, in bytes.
	MTU int
	// Services is the way in which pods reach them.
	Services string
	// Masquerade hides the pods' addresses from the outside.
	Masquerade bool
	// Subnets are where addresses come from, one of a family.
	Subnets []netip.Prefix
	// Gateways are those of the subnets, one of a family at most: the host's addresses, or those of other routers where
	// HostAddresses are the host's.
	Gateways, HostAddresses []netip.Addr
}

// list is a network configuration list as runtimes read it.
type list struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Plugins    []plugin `json:"plugins"`
}

// plugin is one of a list's plugins: ours.
type plugin struct {
	Type         string          `json:"type"`
	Link         string          `json:"link"`
	Parent       string          `json:"parent,omitempty"`
	Bridge       string          `json:"bridge,omitempty"`
	MTU          int             `json:"mtu,omitempty"`
	Services     string          `json:"services,omitempty"`
	Masquerade   bool            `json:"masquerade,omitempty"`
	Hosts        []netip.Addr    `json:"hostAddresses,omitempty"`
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         addresses       `json:"ipam"`
}

type addresses struct {
	Type   string     `json:"type"`
	Ranges [][]subnet `json:"ranges"`
}

type subnet struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// Conflist is the network's configuration list, which the plugin is known to take.
// The error names what it would refuse.
func (n Network) Conflist() ([]byte, error) {
	if !slices.Contains(Versions(), n.CNIVersion) {
		return nil, fmt.Errorf("CNI version %q: want one of %s", n.CNIVersion, strings.Join(Versions(), ", "))
	}
	if err := utils.ValidateNetworkName(n.Name); err != nil {
		return nil, fmt.Errorf("name %q: want letters, digits, dots, dashes and underscores, a letter or digit first", n.Name)
	}
	p := plugin{
		Type: cni.PluginType, Link: n.Link, Parent: n.Parent, Bridge: n.Bridge, MTU: n.MTU, Services: n.Services, Masquerade: n.Masquerade,
		Capabilities: map[string]bool{"aliases": true, "bandwidth": true, "ips": true, "mac": true, "portMappings": true},
		Hosts:        n.HostAddresses, IPAM: addresses{Type: cni.IPAMType},
	}
	for _, prefix := range n.Subnets {
		p.IPAM.Ranges = append(p.IPAM.Ranges, []subnet{{Subnet: prefix}})
	}
	if err := p.IPAM.setGateways(n.Gateways); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(list{n.CNIVersion, n.Name, []plugin{p}}, "", "  ")
	if err != nil {
		return nil, err
	}
	config, err := PluginConfig(text)
	if err != nil {
		return nil, err
	}
	if _, err := cni.Parse(config); err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// setGateways gives the subnets their gateways, by family.
func (a addresses) setGateways(gateways []netip.Addr) error {
	for _, gateway := range gateways {
		of := slices.IndexFunc(a.Ranges, func(r []subnet) bool { return r[0].Subnet.Addr().Is4() == gateway.Is4() })
		if of < 0 {
			return fmt.Errorf("gateway %v: there is no subnet of its family", gateway)
		}
		if have := a.Ranges[of][0].Gateway; have.IsValid() {
			return fmt.Errorf("gateway %v: %v has the gateway %v already", gateway, a.Ranges[of][0].Subnet, have)
		}
		a.Ranges[of][0].Gateway = gateway
	}
	return nil
}

// PluginConfig is what a runtime gives the first plugin of a list on its standard
// input.
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
		return nil, errors.New("the list has no plugins")
	}
	config := l.Plugins[0]
	config["cniVersion"], config["name"] = l.CNIVersion, l.Name
	return json.Marshal(config)
}

// PickLink is the link mode that link "auto" stands for on this machine: the first
// of those preferred that the kernel has. It tries them in network namespaces of
// its own, and needs root for it.
func PickLink() (string, error) {
	var errs []error
	for _, name := range cni.Preferred() {
		mode, err := podlink.Lookup(name)
		if err == nil {
			err = mode.Probe()
		}
		if err == nil {
			return name, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("link auto: %w", errors.Join(errs...))
}

// foreignList says why a configuration is not one of ours: anything but a list
// whose plugins are all of our type.
func foreignList(text []byte) error {
	var l struct {
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("it is no list of plugins: %w", err)
	}
	var others []string
	for _, p := range l.Plugins {
		if p.Type != cni.PluginType {
			others = append(others, fmt.Sprintf("%q", p.Type))
		}
	}
	switch {
	case len(l.Plugins) == 0:
		return errors.New("it has no plugins")
	case len(others) > 0:
		return fmt.Errorf("it has plugin %s", strings.Join(others, ", "))
	}
	return nil
}
