// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPolicyChanged counts the calls after changes of NetworkPolicies: none for those that exist
// at the start, the first one at once, few for many changes, and again after an error.
func TestPolicyChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		var fails atomic.Bool
		l := start(t, Options{CheckPeriod: time.Millisecond, PolicyChanged: func(context.Context) error {
			calls.Add(1)
			if fails.Load() {
				return errors.New("no")
			}
			return nil
		}})
		policy := source.Event{Type: source.Set, Object: &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"}}}
		after := func(pause time.Duration, want int32) {
			t.Helper()
			time.Sleep(pause)
			synctest.Wait()
			if n := calls.Load(); n != want {
				t.Errorf("%d calls, want %d", n, want)
			}
		}
		l.events <- []source.Event{policy, synced}
		l.wait("full")
		after(time.Minute, 0)
		l.events <- []source.Event{policy}
		after(10*time.Millisecond, 1)
		for range 5 {
			l.events <- []source.Event{policy}
			after(10*time.Millisecond, 1)
		}
		after(policyPause, 2)
		fails.Store(true)
		l.events <- []source.Event{{Type: source.Delete, Object: policy.Object}}
		after(policyPause, 3)
		fails.Store(false)
		after(policyPause, 4)
		after(time.Minute, 4)
		l.wait("full") // no NetworkPolicy has programmed Services
	})
}

// TestPolicyLabels changes the labels of a pod and of a Namespace, by which policies select. That is a change of
// policies, too, and other changes of a pod are not.
func TestPolicyLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		l := start(t, Options{CheckPeriod: time.Millisecond, PolicyChanged: func(context.Context) error { calls.Add(1); return nil }})
		labels := map[string]string{"app": "web"}
		pod := source.Event{Type: source.Set, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: labels}}}
		namespace := source.Event{Type: source.Set, Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: labels}}}
		l.events <- []source.Event{pod, namespace, synced}
		l.wait("full")
		quarantine := map[string]string{"app": "web", "quarantine": ""}
		for want, e := range []source.Event{
			pod,
			{Type: source.Set, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: quarantine}}},
			{Type: source.Set, Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: quarantine}}},
		} {
			l.events <- []source.Event{e}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := calls.Load(); n != int32(want) {
				t.Errorf("%d calls, want %d", n, want)
			}
		}
	})
}
