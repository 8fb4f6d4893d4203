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

// Lead calls work while this client holds a Lease of the pod's namespace, or of kube-system, until the context ends. At
// most one of several clients holds it. It calls failing with errors.
func (c *Client) Lead(ctx context.Context, name, identity string, work func(context.Context),
	failing func(error)) error {
	config := rest.CopyConfig(c.config)
	config.ContentType = runtime.ContentTypeJSON
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("lease %s: %w", name, err)
	}
	namespace, _ := os.ReadFile(namespaceFile)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &patientLock{&resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: cmp.Or(strings.TrimSpace(string(namespace)), "kube-system"), Name: name},
			Client:    client, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}, c.leaseFor / 8, failing},
		LeaseDuration: c.leaseFor, RenewDeadline: c.leaseFor * 2 / 3, RetryPeriod: c.leaseFor / 8, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: work, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", name, err)
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

// SetIngress replaces the addresses of a Service's load balancer. It does nothing if these differ from had, as another
// controller has changed them.
func (c *Client) SetIngress(ctx context.Context, namespace, name string, had, want []netip.Addr) error {
	var o corev1.Service
	err := c.typed.Get().AbsPath("/api/v1/namespaces", namespace, "services", name).Do(ctx).Into(&o)
	is := func(in corev1.LoadBalancerIngress, addr netip.Addr) bool { return in.IP == addr.String() }
	if err == nil && slices.EqualFunc(o.Status.LoadBalancer.Ingress, had, is) {
		mode, ingress := corev1.LoadBalancerIPModeVIP, []corev1.LoadBalancerIngress{}
		for _, addr := range want {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: addr.String(), IPMode: &mode})
		}
		var patch []byte
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
			"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}})
		if err == nil {
			_, err = c.dynamic.Resource(Services.resource()).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch,
				metav1.PatchOptions{}, "status")
		}
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // of both, an event follows
		return fmt.Errorf("set status.loadBalancer of Service %s/%s: %w", namespace, name, err)
	}
	return nil
}
