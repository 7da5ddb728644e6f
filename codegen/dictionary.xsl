<?xml version="1.0" encoding="UTF-8"?>
<!-- A data dictionary in Markdown, from the model document: what publishers register and subscribers can ask for. -->
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:output method="text" encoding="UTF-8" media-type="text/markdown"/>

  <xsl:template match="/model">
    <xsl:value-of select="concat('# ', @title, '&#10;&#10;')"/>
    <xsl:if test="text != ''"><xsl:value-of select="concat(text, '&#10;&#10;')"/></xsl:if>
    <xsl:value-of select="concat('Document element: `', @root, '`&#10;')"/>
    <xsl:apply-templates select="entry"/>
  </xsl:template>

  <xsl:template match="entry">
    <xsl:value-of select="concat('&#10;## ', @name, '&#10;&#10;`', @path, '`')"/>
    <xsl:if test="@base != ''"><xsl:value-of select="concat(', a ', @base)"/></xsl:if>
    <xsl:text>&#10;</xsl:text>
    <xsl:if test="text != ''"><xsl:value-of select="concat('&#10;', text, '&#10;')"/></xsl:if>
    <xsl:if test="field">
      <xsl:text>
| field | in the document | type | values | meaning |
|---|---|---|---|---|
</xsl:text>
    </xsl:if>
    <xsl:apply-templates select="field"/>
  </xsl:template>

  <xsl:template match="field">
    <xsl:value-of select="concat('| ', @name, ' | `', @path, '` | ', @type, ' | ')"/>
    <xsl:for-each select="value">
      <xsl:if test="position() > 1">, </xsl:if>
      <xsl:value-of select="."/>
    </xsl:for-each>
    <xsl:value-of select="concat(' | ', text, ' |&#10;')"/>
  </xsl:template>
</xsl:stylesheet>
