// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// podDevice holds the flags that select a pod's device.
type podDevice struct {
	datapath.EndpointSpec
	netns, hostNetns string
	guard            string
	pod              policy.Pod
}

func (p *podDevice) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.IfName, "ifname", "eth0", "name of the device in the pod")
	flags.StringVar(&p.netns, "netns", "",
		"name or path of the pod's network namespace, such as pod-a or /proc/1234/ns/net")
	flags.StringVar(&p.hostNetns, "host-netns", "",
		"name or path of the network namespace that the pod is plugged into (default: this one)")
}

// addMoreFlags adds flags for what the kernel does not report, and for the pod's identity in network policies.
func (p *podDevice) addMoreFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.HostIfName, "host-ifname", "", "the host's device of a tap or tun")
	flags.StringVar(&p.Segment, "segment", "", "the bridge of Open vSwitch that the pod is on")
	flags.Var(cli.Each(&p.Addresses, parsePodAddress, ""), "address",
		"address of the pod, instead of its device's; of a VM behind --host-ifname (repeatable)")
	flags.Var(cli.Each(&p.Allowed, parseAllowed, ""), "allowed-address",
		"further address or prefix that the pod may use: of a router, or one that moves between pods (repeatable; empty: "+
			"none)")
	flags.Var(cli.OneOf(&p.guard, "on", "off"), "source-guard",
		"drop what the pod sends from addresses that are not its own: on or off")
	flags.Var(cli.One(&p.MAC, parseMAC, "six bytes, such as 52:54:00:00:00:01"), "mac",
		"MAC address of a VM behind --host-ifname")
	flags.StringToStringVar(&p.pod.Labels, "label", nil,
		"label of the pod, as in app=web, which network policies select (repeatable)")
	flags.StringVar(&p.pod.Namespace, "namespace", "", "namespace of the pod for network policies (default \"default\")")
	flags.StringVar(&p.pod.Name, "pod", "", "name of the pod for network policies")
}

func parsePodAddress(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, errors.New("want an IP address")
	}
	if a := addr.Unmap(); a.Zone() != "" || !a.IsGlobalUnicast() {
		err = errors.New("other pods could not send to it")
	}
	return addr, err
}

func parseAllowed(text string) (prefix netip.Prefix, err error) {
	if text == "" { // none
		return prefix, nil
	}
	if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if prefix, err = netip.ParsePrefix(text); err != nil {
		return prefix, errors.New("want an IP address or a prefix")
	}
	return prefix, datapath.CheckAllowed(prefix)
}

func parseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != 6 {
		err = errors.New("not of Ethernet")
	}
	return mac, err
}

// check completes the spec. It returns an error for flags that are missing or excess.
func (p *podDevice) check(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	p.Given = &datapath.Given{
		Addresses: set("address"), Allowed: set("allowed-address"), Guard: set("source-guard"),
		Namespace: set("namespace"), Name: set("pod"), Labels: set("label"),
	}
	p.Unguarded = p.guard == "off"
	p.Allowed = slices.DeleteFunc(p.Allowed, func(a netip.Prefix) bool { return !a.IsValid() })
	switch vm := p.netns == ""; {
	case vm && len(p.Addresses) == 0 && p.MAC == nil:
		return errors.New("--netns is missing; a VM takes --host-ifname, --address and --mac")
	case !vm && p.MAC != nil:
		return errors.New("--mac is for a VM, and --netns is for a pod with a namespace")
	case vm && (p.HostIfName == "" || len(p.Addresses) == 0 || p.MAC == nil):
		return errors.New("a VM takes --host-ifname, --address and --mac")
	case p.Unguarded && len(p.Allowed) > 0:
		return errors.New("--allowed-address: without --source-guard the pod sends from any address")
	case p.HostIfName != "" && p.Segment != "":
		return errors.New("--host-ifname and --segment exclude each other")
	case p.Given.Namespace && p.pod.Namespace == "":
		return errors.New("--namespace is empty: name one, or leave the flag out")
	case p.Given.Name && p.pod.Name == "":
		return errors.New("--pod is empty: name the pod, or leave the flag out")
	}
	if g := p.Given; !g.Namespace && !g.Name && !g.Labels {
		return nil
	}
	p.pod.Namespace = cmp.Or(p.pod.Namespace, "default")
	p.Pod = &p.pod
	return p.pod.Validate()
}

// with opens the namespaces and calls a function with the device.
func (p *podDevice) with(do func(datapath.EndpointSpec) error) (err error) {
	a := p.EndpointSpec
	a.Owner = service.CLI
	if p.netns == "" {
		a.IfName = ""
	} else if a.Namespace, err = cli.OpenNamespace(p.netns); err != nil {
		return err
	} else {
		defer a.Namespace.Close()
	}
	if p.hostNetns != "" {
		if a.Host, err = cli.OpenNamespace(p.hostNetns); err != nil {
			return err
		}
		defer a.Host.Close()
	}
	return do(a)
}
