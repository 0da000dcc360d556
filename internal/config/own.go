// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateOwn checks Slipstream's own settings, except fastPath (see [Config.Validate]).
func (c *Config) validateOwn() (errs field.ErrorList) {
	period := func(path string, d *metav1.Duration) {
		if d != nil && d.Duration <= 0 {
			errs = append(errs, field.Invalid(field.NewPath(path), d.Duration.String(), positive))
		}
	}
	period("minSyncPeriod", c.Slipstream.MinSyncPeriod)
	m := ofMode(&c.KubeProxy, c.KubeProxy.Mode)
	if d, most := c.Slipstream.MinSyncPeriod, m.syncPeriod.Duration; d != nil && d.Duration > most && most > 0 {
		errs = append(errs, field.Invalid(field.NewPath("minSyncPeriod"), d.Duration.String(),
			fmt.Sprintf("must not be greater than %s (%v)", field.NewPath(m.block, "syncPeriod"), most)))
	}
	period("checkPeriod", c.Slipstream.CheckPeriod)
	if d := c.Slipstream.VerifyPeriod; d.Duration < 0 {
		errs = append(errs, field.Invalid(field.NewPath("verifyPeriod"), d.Duration.String(), notNegative))
	}
	if c.Slipstream.Manifests != "" && c.KubeProxy.ClientConnection.Kubeconfig != "" {
		errs = append(errs, field.Invalid(field.NewPath("manifests"), c.Slipstream.Manifests, "cannot be combined with the Kubernetes API (clientConnection.kubeconfig)"))
	}
	return errs
}

// FastPath returns the settings of the fast path, with threshold 0 (off) if the gate
// [Acceleration] is disabled.
func (c *Config) FastPath() FastPathConfiguration {
	f := c.Slipstream.FastPath
	if !c.Gates().Enabled(Acceleration) {
		f.OffloadPacketThreshold = new(int64)
	}
	return f
}
