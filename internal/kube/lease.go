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
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// leaseFor is the duration of a Lease, as of the controllers of Kubernetes. A client renews its
// Lease eight times in this time, and works for two thirds of it after the last renewal.
const leaseFor = 15 * time.Second

// namespaceFile has the namespace of the pod that this process is in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Election is a Lease of the pod's namespace, or of kube-system. At most one of several clients holds it.
type Election struct {
	Lease, Identity string                // the names of the Lease and of this client
	Competes        func() bool           // whether the client may hold the Lease; if not, it sends no requests
	Work            func(context.Context) // called when the client holds the Lease, until it no longer does
	Failing         func(error)           // called with the errors of requests
}

// Lead takes part in an election until the context ends. It obeys the rules of client-go's package leaderelection,
// which would make the program a third larger, as it imports all clients.
func (c *Client) Lead(ctx context.Context, e Election) {
	namespace, _ := os.ReadFile(namespaceFile)
	l := lease{Client: c, Election: e, namespace: cmp.Or(strings.TrimSpace(string(namespace)), "kube-system")}
	every := time.NewTicker(c.leaseFor / 8)
	defer every.Stop()
	var working context.Context
	var works sync.WaitGroup
	defer works.Wait()
	expiry, stop := time.NewTimer(0), func() {}
	defer func() { stop() }()
	for ctx.Err() == nil {
		held, err, until := false, error(nil), time.Now().Add(c.leaseFor*2/3)
		if e.Competes() && !time.Now().Before(l.next) {
			bounded, cancel := context.WithDeadline(ctx, until)
			held, err = l.hold(bounded)
			cancel()
		}
		switch {
		case err != nil && ctx.Err() == nil:
			e.Failing(fmt.Errorf("lease %s: %w", e.Lease, err))
		case held && (working == nil || working.Err() != nil):
			works.Wait()
			working, stop = context.WithCancel(ctx)
			works.Go(func() { e.Work(working) })
			expiry = time.AfterFunc(time.Until(until), stop)
		case held:
			expiry.Reset(time.Until(until))
		case err == nil:
			stop()
		}
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
	expiry.Stop()
}

// lease is a Lease as this client has read it last.
type lease struct {
	*Client
	Election
	namespace string
	version   string    // resourceVersion
	changed   time.Time // when this client noticed the version: the clocks of machines differ
	next      time.Time // when the term of another client may have ended: until then no request is sent
}

// hold takes or renews the Lease, unless another client has renewed it within its duration.
func (l *lease) hold(ctx context.Context) (bool, error) {
	list := "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases"
	var o coordinationv1.Lease
	data, err := l.rest.Get().AbsPath(list, l.Lease).Do(ctx).Raw()
	missing := apierrors.IsNotFound(err)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil && !missing {
		return false, err
	}
	if now := time.Now(); o.ResourceVersion != l.version {
		l.version, l.changed = o.ResourceVersion, now
	}
	s := &o.Spec
	holder, seconds := ptr.Deref(s.HolderIdentity, ""), ptr.Deref(s.LeaseDurationSeconds, 0)
	now := metav1.NowMicro()
	if holder != l.Identity {
		l.next = l.changed.Add(time.Duration(seconds) * time.Second)
		if holder != "" && time.Now().Before(l.next) {
			return false, nil
		}
		s.LeaseTransitions, s.AcquireTime = ptr.To(ptr.Deref(s.LeaseTransitions, 0)+1), &now
	}
	s.HolderIdentity, s.LeaseDurationSeconds, s.RenewTime = &l.Identity, ptr.To(int32(l.leaseFor.Seconds())), &now
	o.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	to := l.rest.Put().AbsPath(list, l.Lease)
	if o.Namespace, o.Name = l.namespace, l.Lease; missing {
		to = l.rest.Post().AbsPath(list)
	}
	if data, err = json.Marshal(o); err == nil {
		err = to.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(data).Do(ctx).Error()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another client was faster
	}
	return err == nil, err
}

// Ingress are the addresses of a Service's load balancer, as they were read and as they should be.
type Ingress struct {
	Namespace, Name, UID string
	Had, Want            []netip.Addr
}

// Refused reports whether the API server or a webhook refuses the object of a request: the next one may succeed.
func Refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsInternalError(err)
}

// SetIngress replaces the addresses of a Service's load balancer, and reports whether it did: another controller may
// have changed the Service or made it again meanwhile.
func (c *Client) SetIngress(ctx context.Context, s Ingress) (set bool, err error) {
	var o corev1.Service
	err = c.typed.Get().AbsPath("/api/v1/namespaces", s.Namespace, "services", s.Name).Do(ctx).Into(&o)
	is := func(in corev1.LoadBalancerIngress, addr netip.Addr) bool {
		has, _ := netip.ParseAddr(in.IP) // in any form
		return has.Unmap() == addr
	}
	if err == nil && string(o.UID) == s.UID && slices.EqualFunc(o.Status.LoadBalancer.Ingress, s.Had, is) {
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
		set = err == nil
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the watch delivers both
		return false, fmt.Errorf("set status.loadBalancer of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return set, nil
}
