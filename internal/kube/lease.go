// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseFor is how long a client that ended holds a Lease, as with the controllers of Kubernetes.
const leaseFor = 15 * time.Second

// namespaceFile has the namespace of the pod that this process is in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Election is a Lease of the pod's namespace, or of kube-system. At most one of several clients holds it.
type Election struct {
	Lease, Identity string                // the names of the Lease and of this client
	Work            func(context.Context) // called when the client holds the Lease, until it no longer does
	Failing         func(error)           // called with the errors of requests
}

// Lead takes part in an election until the context ends.
func (c *Client) Lead(ctx context.Context, e Election) error {
	config := rest.CopyConfig(c.config)
	config.ContentType = runtime.ContentTypeJSON
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("lease %s: %w", e.Lease, err)
	}
	namespace, _ := os.ReadFile(namespaceFile)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &patientLock{&resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: cmp.Or(strings.TrimSpace(string(namespace)), "kube-system"), Name: e.Lease},
			Client:    client, LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		}, c.leaseFor / 8, e.Failing},
		LeaseDuration: c.leaseFor, RenewDeadline: c.leaseFor * 2 / 3, RetryPeriod: c.leaseFor / 8, Name: e.Lease,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: e.Work, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", e.Lease, err)
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	return nil
}

// patientLock reads the Lease until the API server answers. The library would log each attempt of each node.
type patientLock struct {
	*resourcelock.LeaseLock
	every   time.Duration
	failing func(error)
}

// Get returns the Lease, or an error if it does not exist or the context has ended.
func (l *patientLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	for {
		record, raw, err := l.LeaseLock.Get(ctx)
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return record, raw, err
		}
		l.failing(fmt.Errorf("lease %s: %w", l.Describe(), err))
		select {
		case <-ctx.Done():
		case <-time.After(l.every):
		}
	}
}

// Ingress are the addresses of a Service's load balancer, as they were read and as they should be.
type Ingress struct {
	Namespace, Name string
	Had, Want       []netip.Addr
}

// SetIngress replaces the addresses of a Service's load balancer. It does nothing if another controller has changed
// them meanwhile.
func (c *Client) SetIngress(ctx context.Context, s Ingress) error {
	var o corev1.Service
	err := c.typed.Get().AbsPath("/api/v1/namespaces", s.Namespace, "services", s.Name).Do(ctx).Into(&o)
	is := func(in corev1.LoadBalancerIngress, addr netip.Addr) bool { return in.IP == addr.String() }
	if err == nil && slices.EqualFunc(o.Status.LoadBalancer.Ingress, s.Had, is) {
		mode, ingress := corev1.LoadBalancerIPModeVIP, []corev1.LoadBalancerIngress{}
		for _, addr := range s.Want {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: addr.String(), IPMode: &mode})
		}
		var patch []byte
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
			"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}})
		if err == nil {
			_, err = c.dynamic.Resource(Services.resource()).Namespace(s.Namespace).Patch(ctx, s.Name, types.MergePatchType,
				patch, metav1.PatchOptions{}, "status")
		}
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // of both, an event follows
		return fmt.Errorf("set status.loadBalancer of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}
