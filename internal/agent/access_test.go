// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/service/health"
	"mustang/internal/testkit"
)

// Attach notes the node's addresses.
func (t *table) Attach(_ context.Context, addresses []netip.Addr) error {
	t.Lock()
	defer t.Unlock()
	if t.absent && len(addresses) > 0 {
		return errors.Join(nil, errors.Join(&AbsentError{addresses}))
	}
	t.at = addresses
	return nil
}

// NodePorts has node ports at the node's addresses.
func (t *table) NodePorts(addresses []netip.Addr) ([]netip.Addr, error) { return addresses, nil }

// checks is a table as the answers to health checks.
type checks struct{ *table }

func (c checks) Apply(services []service.Service, name health.Name) error {
	c.Lock()
	defer c.Unlock()
	c.ports, c.names = nil, nil
	for _, s := range services {
		if s.HealthCheckPort == c.busy {
			return errors.Join(&health.PortError{Port: c.busy, Service: s.String(), Err: syscall.EADDRINUSE})
		}
		namespace, called := name(s)
		c.names = append(c.names, namespace+"/"+called)
		c.ports = append(c.ports, s.HealthCheckPort)
	}
	return nil
}

// TestAccess tells what is attached the node's addresses, and which health checks to answer.
func TestAccess(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	start(t, s, rows)
	wants := func(what, want string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			rows.Lock()
			defer rows.Unlock()
			if have := fmt.Sprint(rows.at, rows.ports); have != want {
				return fmt.Errorf("%s: there is %s, want %s", what, have, want)
			}
			return nil
		})
	}
	node := func(ip string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"},
"status": {"addresses": [{"type": "Hostname", "address": "here"}, {"type": "InternalIP", "address": %q}]}}`, ip)
	}
	s.Put(t, "/api/v1/nodes", node("192.0.2.1"))
	wants("a node", "[192.0.2.1] []")
	s.Put(t, services, serviceAt("web", "10.96.0.1", `, "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30100,
"externalIPs": ["192.0.2.10"]`))
	s.Put(t, "/api/v1/nodes", node("192.0.2.2"))
	wants("another address, and a health check", "[192.0.2.2] [30100]")
	rows.Lock()
	if fmt.Sprint(rows.names) != "[shop/web]" {
		t.Errorf("health checks of %v", rows.names)
	}
	rows.Unlock()
	s.Delete(services, "shop", "web")
	wants("no service", "[192.0.2.2] []")
}

// TestNodePorts has node ports at the addresses that the node has, and at others once it has others.
func TestNodePorts(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	start(t, s, rows)
	node := func(ip string) {
		s.Put(t, nodes, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"},
"status": {"addresses": [{"type": "InternalIP", "address": %q}]}}`, ip))
	}
	node("192.0.2.1")
	port := strings.Replace(serviceAt("web", "10.96.0.1", `, "type": "NodePort"`), `"port": 80`, `"port": 80, "nodePort": 30080`, 1)
	s.Put(t, services, port)
	rows.wants(t, "an address", "10.96.0.1:80/tcp []; 192.0.2.1:30080/tcp []")
	node("192.0.2.2")
	rows.wants(t, "another", "10.96.0.1:80/tcp []; 192.0.2.2:30080/tcp []")
}
