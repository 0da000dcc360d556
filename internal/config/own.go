// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"

	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateOwn checks Slipstream's own settings.
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
		errs = append(errs, field.Invalid(field.NewPath("manifests"), c.Slipstream.Manifests, "objects come from here or from the Kubernetes API (clientConnection.kubeconfig), not from both"))
	}
	_, more := c.Slipstream.FastPath.Parse(field.NewPath("fastPath"))
	return append(errs, more...)
}

// Parse turns the settings into those of the package fastpath, and returns what is
// wrong with them.
func (f *FastPathConfiguration) Parse(path *field.Path) (c fastpath.Config, errs field.ErrorList) {
	var err error
	invalid := func(name string, value any) {
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(name), value, err.Error()))
		}
	}
	if n := *f.OffloadPacketThreshold; n < 0 || n > math.MaxInt32 {
		errs = append(errs, field.Invalid(path.Child("offloadPacketThreshold"), n, "is no number of packets"))
	} else {
		c.Threshold = uint32(n)
	}
	c.Scope, err = fastpath.ParseScope(f.Scope)
	invalid("scope", f.Scope)
	c.Hardware, err = fastpath.ParseHardware(string(f.HardwareOffload))
	invalid("hardwareOffload", f.HardwareOffload)
	if f.Interfaces != "" {
		c.Interfaces, err = iface.Compile(f.Interfaces)
		invalid("interfaces", f.Interfaces)
	}
	return c, errs
}

// FastPath are the settings of a valid configuration for the package fastpath.
func (c *Config) FastPath() fastpath.Config {
	parsed, _ := c.Slipstream.FastPath.Parse(nil)
	if !c.Gates().Enabled(Acceleration) {
		parsed.Threshold = 0
	}
	return parsed
}
