// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"mustang/internal/datapath"
	"mustang/internal/podlink"
)

// addServices makes the lab's services in the way that its options say.
func (l *Lab) addServices(ctx context.Context, mode podlink.Mode) error {
	rules := kubeProxy{
		services: Services(),
		pods:     []netip.Prefix{Gateways[0].Masked(), Gateways[1].Masked()},
		// The reply of a pod on the same link would go straight to the client, past
		// the host that has to translate it back.
		masqueradeAll: !mode.Routed() && !l.Options.NetfilterCall,
	}
	switch l.Options.Via {
	case ViaIPTables:
		return rules.iptables(l.namespaces[Host])
	case ViaNFTables:
		return rules.nftables(ctx, l.namespaces[Host])
	case ViaEBPFTC, ViaEBPFSocket:
		return l.addDatapath(mode)
	}
	return nil
}

// addDatapath opens the lab's own eBPF datapath with its services, and makes the
// pods its endpoints.
func (l *Lab) addDatapath(mode podlink.Mode) error {
	if err := l.openDatapath(); err != nil {
		return err
	}
	services := Services()
	if l.Options.Via == ViaEBPFSocket {
		services = append(services, Published()...)
	}
	for _, service := range services {
		if _, _, err := l.datapath.PutService(service); err != nil {
			return err
		}
	}
	if l.Options.Datapath == DatapathEBPF {
		if err := l.addEndpoints(mode, Host, PodA, PodB); err != nil {
			return err
		}
	}
	if l.Options.Via == ViaEBPFSocket {
		return l.addSocketTranslation()
	}
	return nil
}

// openDatapath opens the lab's own eBPF datapath.
func (l *Lab) openDatapath() error {
	if err := mountBPF(l.store.bpfMount(l.Options.Name)); err != nil {
		return err
	}
	// The lab's maps are small: it has two pods.
	var err error
	l.datapath, err = datapath.Open(datapath.Options{
		Root: l.BPFRoot(), MaxServices: 1024, MaxBackends: 4096, MaxConnections: 65536, MaxEndpoints: 256,
	})
	return err
}

// addEndpoints makes pods of a host endpoints of the lab's datapath.
func (l *Lab) addEndpoints(mode podlink.Mode, host string, pods ...string) error {
	for _, pod := range pods {
		if _, _, err := l.datapath.AddEndpoint(l.attach(mode, host, pod)); err != nil {
			return fmt.Errorf("%s: %w", pod, err)
		}
	}
	return nil
}

// attach says where the programs of a host's pod go.
func (l *Lab) attach(mode podlink.Mode, host, pod string) datapath.Attach {
	a := datapath.Attach{Namespace: l.namespaces[pod], IfName: IfName, Host: l.namespaces[host]}
	switch {
	case mode.Needs() == podlink.NeedsRelay:
		a.HostIfName = HostIfName(pod)
	case mode.Needs() == podlink.NeedsOpenVSwitch && (!mode.HostSide() || l.ovsDatapath == podlink.OVSUserSpace):
		a.Segment = podlink.DefaultBridge
	}
	return a
}

// addSocketTranslation lets all places of the lab reach services by translation
// at the socket.
func (l *Lab) addSocketTranslation() error {
	for _, place := range []string{Host, PodA, PodB} {
		if _, err := l.datapath.AddHost(l.namespaces[place]); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	if l.cgroup == "" {
		return errNoCgroup
	}
	_, err := l.datapath.AttachSocket(l.cgroup)
	return err
}
