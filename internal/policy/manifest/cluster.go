// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type pod struct {
	Spec struct {
		NodeName       string      `json:"nodeName"`
		HostNetwork    bool        `json:"hostNetwork"`
		Containers     []container `json:"containers"`
		InitContainers []container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase  string     `json:"phase"`
		PodIP  netip.Addr `json:"podIP"`
		PodIPs []struct {
			IP netip.Addr `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Ports         []struct {
		Name          string     `json:"name"`
		Protocol      protocol   `json:"protocol"`
		ContainerPort portNumber `json:"containerPort"`
	} `json:"ports"`
}

type node struct {
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

func (s *set) addNamespace(o document.Object, _ jsontext.Value) error {
	s.Snapshot.Namespaces = append(s.Snapshot.Namespaces, policy.Namespace{Name: o.Metadata.Name,
		Labels: o.Metadata.Labels})
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
	for _, a := range of.Status.PodIPs {
		p.Addresses = append(p.Addresses, a.IP)
	}
	if len(p.Addresses) == 0 && of.Status.PodIP.IsValid() {
		p.Addresses = []netip.Addr{of.Status.PodIP}
	}
	once := func(c container) bool { return c.RestartPolicy != "Always" } // others are sidecars
	for _, c := range append(of.Spec.Containers, slices.DeleteFunc(of.Spec.InitContainers, once)...) {
		for _, q := range c.Ports {
			if q.Name != "" && q.ContainerPort == 0 {
				return fmt.Errorf("spec.containers: port %q: containerPort: missing", q.Name)
			}
			if q.Name != "" {
				of := cmp.Or(service.Protocol(q.Protocol), service.TCP)
				p.Ports = append(p.Ports, policy.NamedPort{Name: q.Name, Protocol: of, Port: uint16(q.ContainerPort)})
			}
		}
	}
	s.Snapshot.Pods = append(s.Snapshot.Pods, p)
	return nil
}
