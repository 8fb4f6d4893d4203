// SPDX-License-Identifier: Apache-2.0

// Package health answers the health checks of load balancers: whether this node has a backend of a service. The answers
// equal kube-proxy's at a healthCheckNodePort, so that a load balancer sends clients to such nodes only.
package health

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mustang/internal/service"
)

const requestTimeout, idleTimeout = 5 * time.Second, time.Minute

// Server answers at the health-check ports of services. Any goroutine may call its methods.
type Server struct {
	addresses []netip.Addr

	mu    sync.Mutex
	ports map[uint16]*port
}

// New returns a server for these addresses; none: all addresses. It listens after Apply.
func New(addresses ...netip.Addr) *Server {
	return &Server{addresses: addresses, ports: make(map[uint16]*port)}
}

// PortError means that the server cannot listen on a health-check port.
type PortError struct {
	Port    uint16
	Service string // whose it is
	Err     error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("health-check port %d of service %s: %v", e.Port, e.Service, e.Err)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// Name is the name of a service in answers: its namespace and name in a cluster.
type Name func(service.Service) (namespace, name string)

// Apply makes the server answer exactly for these services, by their names; nil names them by their frontends. The
// error joins a *[PortError] for each port that it cannot listen on. The next call of Apply tries again.
func (s *Server) Apply(services []service.Service, name Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := answers(services, name)
	var errs []error
	for number, p := range s.ports {
		if want[number] == nil {
			errs = append(errs, p.close())
			delete(s.ports, number)
		}
	}
	for number, a := range want {
		if p := s.ports[number]; p != nil {
			p.answer.Store(a)
		} else if p, err := s.listen(number, a); err != nil {
			errs = append(errs, &PortError{number, a.Service.Name, err})
		} else {
			s.ports[number] = p
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return errors.Join(errs...)
}

// Close stops listening, and closes all connections.
func (s *Server) Close() error { return s.Apply(nil, nil) }

type port struct {
	server  http.Server
	serving sync.WaitGroup
	answer  atomic.Pointer[answer]
}

func (s *Server) listen(number uint16, a *answer) (*port, error) {
	var hosts []string
	for _, addr := range s.addresses {
		hosts = append(hosts, addr.String())
	}
	if hosts == nil {
		hosts = []string{""}
	}
	p := &port{}
	p.answer.Store(a)
	p.server = http.Server{Handler: p, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout}
	for _, host := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(number))))
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.serving.Go(func() { _ = p.server.Serve(l) }) // until the server is closed
	}
	return p, nil
}

func (p *port) close() error {
	err := p.server.Close()
	p.serving.Wait()
	return err
}

// answer is the body of an answer, as kube-proxy sends it.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints int  `json:"localEndpoints"`
	Healthy        bool `json:"serviceProxyHealthy"`
}

// answers returns the answer at each port. The active backends of all services with the port count, each address once.
func answers(services []service.Service, name Name) map[uint16]*answer {
	all, names, local := map[uint16]*answer{}, map[uint16][]string{}, map[uint16]map[netip.Addr]bool{}
	for _, s := range services {
		at := s.HealthCheckPort
		if at == 0 {
			continue
		}
		if all[at] == nil {
			all[at], local[at] = &answer{Healthy: true}, map[netip.Addr]bool{}
		}
		called := s.String()
		if name != nil {
			all[at].Service.Namespace, called = name(s)
		}
		names[at] = append(names[at], called)
		for _, b := range s.Backends {
			if b.Local && b.State == service.Active {
				local[at][b.Addr.Addr()] = true
			}
		}
	}
	for at, a := range all {
		slices.Sort(names[at])
		a.LocalEndpoints, a.Service.Name = len(local[at]), strings.Join(slices.Compact(names[at]), ", ")
	}
	return all
}

// ServeHTTP answers any request: 200 if this node has a backend, or else 503.
func (p *port) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a := p.answer.Load()
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(a.LocalEndpoints))
	if a.LocalEndpoints == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "\t")
	_ = encoder.Encode(a) // the client may be gone
}
