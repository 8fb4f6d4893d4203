// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// pod is a Pod of v1.
type pod struct {
	Spec struct {
		NodeName       string      `json:"nodeName"`
		HostNetwork    bool        `json:"hostNetwork"`
		Containers     []container `json:"containers"`
		InitContainers []container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIP  string `json:"podIP"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Ports         []struct {
		Name          string `json:"name"`
		Protocol      string `json:"protocol"`
		ContainerPort int64  `json:"containerPort"`
	} `json:"ports"`
}

// node is a Node of v1.
type node struct {
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

func (s *set) addNamespace(o document.Object, _ jsontext.Value) error {
	s.Snapshot.Namespaces = append(s.Snapshot.Namespaces, policy.Namespace{Name: o.Metadata.Name, Labels: o.Metadata.Labels})
	return nil
}

func (s *set) addNode(o document.Object, data jsontext.Value) error {
	var of node
	if err := document.Decode(data, &of); err != nil {
		return err
	}
	n := policy.Node{Name: o.Metadata.Name, Labels: o.Metadata.Labels}
	for i, a := range of.Status.Addresses {
		if a.Type != "InternalIP" && a.Type != "ExternalIP" {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return fmt.Errorf("status.addresses[%d].address: %q is not an address", i, a.Address)
		}
		n.Addresses = append(n.Addresses, addr)
	}
	s.Snapshot.Nodes = append(s.Snapshot.Nodes, n)
	return nil
}

func (s *set) addPod(o document.Object, data jsontext.Value) error {
	var of pod
	if err := document.Decode(data, &of); err != nil {
		return err
	}
	if of.Status.Phase == "Succeeded" || of.Status.Phase == "Failed" {
		return nil // another pod may have its address
	}
	p := policy.Pod{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: o.Metadata.Labels,
		HostNetwork: of.Spec.HostNetwork, Node: of.Spec.NodeName,
	}
	for i, a := range of.Status.PodIPs {
		addr, err := netip.ParseAddr(a.IP)
		if err != nil {
			return fmt.Errorf("status.podIPs[%d].ip: %q is not an address", i, a.IP)
		}
		p.Addresses = append(p.Addresses, addr)
	}
	if ip := of.Status.PodIP; len(p.Addresses) == 0 && ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("status.podIP: %q is not an address", ip)
		}
		p.Addresses = []netip.Addr{addr}
	}
	ports, err := each("spec.containers", of.Spec.Containers, container.named)
	if err != nil {
		return err
	}
	p.Ports = slices.Concat(ports...)
	ofInit, err := each("spec.initContainers", of.Spec.InitContainers, container.named)
	if err != nil {
		return err
	}
	for i, list := range ofInit {
		if of.Spec.InitContainers[i].RestartPolicy == "Always" { // a sidecar
			p.Ports = append(p.Ports, list...)
		}
	}
	s.Snapshot.Pods = append(s.Snapshot.Pods, p)
	return nil
}

// named returns the ports that have a name.
func (c container) named() (out []policy.NamedPort, err error) {
	for i, q := range c.Ports {
		if q.Name == "" {
			continue
		}
		p := policy.NamedPort{Name: q.Name, Protocol: service.TCP}
		if q.Protocol != "" {
			if p.Protocol, err = parseProtocol(q.Protocol); err != nil {
				return nil, fmt.Errorf("ports[%d].protocol: %w", i, err)
			}
		}
		if p.Port, err = portNumber(q.ContainerPort); err != nil {
			return nil, fmt.Errorf("ports[%d].containerPort: %w", i, err)
		}
		out = append(out, p)
	}
	return out, nil
}
