// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/device"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// podDevice is the flags that name a pod's device.
type podDevice struct {
	ifname, netns, hostNetns string
	hostIfname, segment, mac string
	addresses, allowed       []string
	sourceGuard              string

	namespace, pod string
	labels         map[string]string

	given *device.Given
}

func (p *podDevice) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.ifname, "ifname", "eth0", "name of the device in the pod")
	cmd.Flags().StringVar(&p.netns, "netns", "", "name or path of the pod's network namespace, such as pod-a or /proc/1234/ns/net")
	cmd.Flags().StringVar(&p.hostNetns, "host-netns", "", "name or path of the network namespace that the pod is plugged into (default: this one)")
}

// addLinkFlags adds what has to be said of links that the kernel knows too
// little of.
func (p *podDevice) addLinkFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.hostIfname, "host-ifname", "", "the host's device of a tap or tun")
	cmd.Flags().StringVar(&p.segment, "segment", "", "the bridge of Open vSwitch that the pod is on")
	cmd.Flags().StringArrayVar(&p.addresses, "address", nil, "address of the pod, instead of its device's; of a VM behind --host-ifname (repeatable)")
	cmd.Flags().StringArrayVar(&p.allowed, "allowed-address", nil,
		"further address or prefix that the pod may use: of a router, or one that moves between pods (repeatable; empty: none)")
	cmd.Flags().Var(cli.OneOf(&p.sourceGuard, "on", "off"), "source-guard", "drop what the pod sends from addresses that are not its own: on or off")
	cmd.Flags().StringVar(&p.mac, "mac", "", "MAC address of a VM behind --host-ifname")
}

// addPodFlags adds what network policies may know of the pod.
func (p *podDevice) addPodFlags(cmd *cobra.Command) {
	cmd.Flags().StringToStringVar(&p.labels, "label", nil, "label of the pod, as in app=web, which network policies select (repeatable)")
	cmd.Flags().StringVar(&p.namespace, "namespace", "", "namespace of the pod for network policies (default \"default\")")
	cmd.Flags().StringVar(&p.pod, "pod", "", "name of the pod for network policies")
}

// given returns which parts of an endpoint flags name.
func given(cmd *cobra.Command) *device.Given {
	set := cmd.Flags().Changed
	return &device.Given{
		Addresses: set("address"), Allowed: set("allowed-address"), Guard: set("source-guard"),
		Namespace: set("namespace"), Name: set("pod"), Labels: set("label"),
	}
}

// known returns what network policies may know of the pod; nil if no flag says anything.
func (p *podDevice) known() *policy.Pod {
	if g := p.given; g == nil || !g.Namespace && !g.Name && !g.Labels {
		return nil
	}
	return &policy.Pod{Namespace: cmp.Or(p.namespace, "default"), Name: p.pod, Labels: p.labels}
}

// check says what is missing or too much.
func (p *podDevice) check() error {
	switch vm := p.netns == ""; {
	case vm && len(p.addresses) == 0 && p.mac == "":
		return errors.New("--netns is missing; a VM takes --host-ifname, --address and --mac")
	case !vm && p.mac != "":
		return errors.New("--mac is for a VM, and --netns is for a pod with a namespace")
	case vm && (p.hostIfname == "" || len(p.addresses) == 0 || p.mac == ""):
		return errors.New("a VM takes --host-ifname, --address and --mac")
	case p.sourceGuard == "off" && len(p.allowed) > 0:
		return errors.New("--allowed-address: without --source-guard the pod sends from any address")
	case p.hostIfname != "" && p.segment != "":
		return errors.New("--host-ifname and --segment exclude each other")
	case p.given != nil && p.given.Namespace && p.namespace == "":
		return errors.New("--namespace is empty: name one, or leave the flag out")
	case p.given != nil && p.given.Name && p.pod == "":
		return errors.New("--pod is empty: name the pod, or leave the flag out")
	}
	if pod := p.known(); pod != nil {
		return pod.Validate()
	}
	return nil
}

// with opens the namespaces and calls a function with the device.
func (p *podDevice) with(do func(datapath.EndpointSpec) error) error {
	a := datapath.EndpointSpec{Owner: service.CLI, IfName: p.ifname, HostIfName: p.hostIfname, Segment: p.segment, Pod: p.known(), Given: p.given}
	for _, text := range p.addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return cli.Usage(fmt.Errorf("address %q: want an IP address", text))
		}
		if a := addr.Unmap(); a.Zone() != "" || !a.IsGlobalUnicast() {
			return cli.Usage(fmt.Errorf("address %q: other pods could not send to it", text))
		}
		a.Addresses = append(a.Addresses, addr)
	}
	a.Unguarded = p.sourceGuard == "off"
	for _, text := range p.allowed {
		if text == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err == nil {
			err = device.CheckAllowed(prefix)
		} else {
			err = fmt.Errorf("allowed address %q: want an IP address or a prefix", text)
		}
		if err != nil {
			return cli.Usage(err)
		}
		a.Allowed = append(a.Allowed, prefix)
	}
	var err error
	if p.mac != "" {
		if a.MAC, err = net.ParseMAC(p.mac); err != nil || len(a.MAC) != 6 {
			return cli.Usage(fmt.Errorf("MAC address %q: want six bytes, such as 52:54:00:00:00:01", p.mac))
		}
	}
	if p.netns != "" {
		if a.Namespace, err = cli.OpenNamespace(p.netns); err != nil {
			return err
		}
		defer a.Namespace.Close()
	} else {
		a.IfName = ""
	}
	if p.hostNetns != "" {
		if a.Host, err = cli.OpenNamespace(p.hostNetns); err != nil {
			return err
		}
		defer a.Host.Close()
	}
	return do(a)
}
