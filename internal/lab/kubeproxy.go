// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"

	"mustang/internal/lb"
)

// kubeProxy is what kube-proxy knows when it writes its rules: the peer that
// eBPF services are measured against.
type kubeProxy struct {
	services []lb.Service
	// pods are the ranges of pod addresses (kube-proxy's --cluster-cidr).
	pods []netip.Prefix
	// masqueradeAll hides each client behind the host (--masquerade-all), for links
	// on which replies would otherwise pass the host by.
	masqueradeAll bool
}

// Marks and names that kube-proxy uses.
const (
	masqueradeMark = "0x4000"
	serviceName    = "default/mustang"
)

// family returns the services of one family, and the range of its pods.
func (k kubeProxy) family(v4 bool) (services []lb.Service, pods netip.Prefix) {
	for _, service := range k.services {
		if service.Frontend.Addr().Is4() == v4 {
			services = append(services, service)
		}
	}
	for _, prefix := range k.pods {
		if prefix.Addr().Is4() == v4 {
			pods = prefix
		}
	}
	return services, pods
}

// hash shortens what a chain is for into a part of its name, as kube-proxy
// does: the first 16 characters of a SHA-256 in base 32.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
	}
	return base32.StdEncoding.EncodeToString(h.Sum(nil))[:16]
}
