<?xml version="1.0" encoding="UTF-8"?>
<!-- A Python module of entry classes, from the model document (the dump-model option of jbi codegen shows it).
     Docstrings and @wire are finished Python literals; @name and @base are Python identifiers. -->
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:output method="text" encoding="UTF-8" media-type="text/x-python"/>

  <xsl:template match="/model">
    <xsl:value-of select="docstring"/>
    <xsl:text>

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

</xsl:text>
    <xsl:if test="entry/field[@canonical != '']"><xsl:text>from jbi_pubsub.codegen.values import xsd
</xsl:text></xsl:if>
    <xsl:text>from jbi_pubsub.lookup.entry import Entry

__all__ = [
</xsl:text>
    <xsl:for-each select="export">
      <xsl:value-of select="concat('    &quot;', @name, '&quot;,&#10;')"/>
    </xsl:for-each>
    <xsl:text>]
</xsl:text>
    <xsl:apply-templates select="entry"/>
  </xsl:template>

  <xsl:template match="entry">
    <xsl:variable name="base">
      <xsl:choose>
        <xsl:when test="@base = ''">Entry</xsl:when>
        <xsl:otherwise><xsl:value-of select="@base"/></xsl:otherwise>
      </xsl:choose>
    </xsl:variable>
    <xsl:text>

@dataclass(frozen=True, kw_only=True)
</xsl:text>
    <xsl:if test="field[@canonical != '']">
      <xsl:text>@xsd(
</xsl:text>
      <xsl:for-each select="field[@canonical != '']">
        <xsl:value-of select="concat('    ', @name, '=&quot;', @canonical, '&quot;,&#10;')"/>
      </xsl:for-each>
      <xsl:text>)
</xsl:text>
    </xsl:if>
    <xsl:value-of select="concat('class ', @name, '(', $base, '):&#10;')"/>
    <xsl:value-of select="concat('    ', docstring, '&#10;&#10;')"/>
    <xsl:value-of select="concat('    entry_name: ClassVar[str] = ', @wire, '&#10;')"/>
    <xsl:if test="field"><xsl:text>&#10;</xsl:text></xsl:if>
    <xsl:apply-templates select="field"/>
  </xsl:template>

  <xsl:template match="field">
    <xsl:value-of select="concat('    ', @name, ': str | None = None&#10;    ', docstring, '&#10;')"/>
  </xsl:template>
</xsl:stylesheet>
